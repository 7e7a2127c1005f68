--
-- The payload that a sink program gets is the text of the jsonb, byte for byte.
--
CREATE FUNCTION test_json_text(jsonb) RETURNS text LANGUAGE c STRICT AS 'idempotency_test', 'idem_test_json_text_fn';

-- each kind of value, alone and in each place
SELECT test_json_text(doc::jsonb), test_json_text(doc::jsonb) = doc::jsonb::text AS same
  FROM unnest(ARRAY['null', 'true', 'false', '0', '-1.50', '1e100', '""', '"a"', '[]', '{}', '[[]]', '[{}]', '{"": ""}', '{"a": {}}',
	'{"a": [], "b": {"c": []}}', '[null, true, false, 1.0, "a", [1, 2], {"a": 1}, "b"]',
	'{"a": null, "b": true, "c": false, "d": 1, "e": "x", "f": [1], "g": {"h": 2}, "i": "y"}']) AS doc;

-- each character: as a value, as a key, and at either end of a stretch
SELECT count(*) AS characters, count(*) FILTER (WHERE test_json_text(doc) <> doc::text) AS other
  FROM generate_series(1, 66000) AS c,
	   LATERAL (SELECT jsonb_build_object(chr(c) || 'k' || chr(c), chr(c) || 'v' || chr(c), chr(c), jsonb_build_array(chr(c))) AS doc) AS d
 WHERE c NOT BETWEEN 55296 AND 57343;
SELECT test_json_text(to_jsonb(E'\b\f\n\r\t\"\\/\x01\x1f\x7f'::text));

-- from one offset to the next that is stored as such, and past several of them
SELECT count(*) AS documents, count(*) FILTER (WHERE test_json_text(doc) <> doc::text) AS other
  FROM generate_series(0, 200) AS n, generate_series(0, 3) AS pad,
	   LATERAL (SELECT coalesce(jsonb_agg(CASE i % 3 WHEN 0 THEN to_jsonb(i) WHEN 1 THEN to_jsonb(repeat('x', pad)) ELSE jsonb_build_array(i) END), '[]') AS elements,
			   coalesce(jsonb_object_agg(repeat('k', pad) || i, CASE i % 2 WHEN 0 THEN to_jsonb(i / 7.0) ELSE '{"a": [1]}' END), '{}') AS members
				  FROM generate_series(1, n) AS i) AS g,
	   unnest(ARRAY[g.elements, g.members, jsonb_build_array(g.elements, g.members)]) AS doc;

-- deeper than the levels for which there is room at first
SELECT count(*) AS documents, count(*) FILTER (WHERE test_json_text(doc) <> doc::text) AS other
  FROM generate_series(1, 1000, 37) AS depth,
	   unnest(ARRAY[(repeat('[', depth) || repeat(']', depth))::jsonb,
			  (repeat('{"a": [1, ', depth) || '2' || repeat('], "b": 3}', depth))::jsonb]) AS doc;

-- larger than a page, and stored compressed or apart
CREATE TEMP TABLE large AS
	SELECT jsonb_build_object('n', n, 'text', repeat(E'\\"ab\n', n), 'hashes', (SELECT jsonb_agg(md5(i::text)) FROM generate_series(1, n) AS i)) AS doc
	  FROM unnest('{1,100,1000,10000}'::int[]) AS n;
SELECT doc ->> 'n' AS n, test_json_text(doc) = doc::text AS same FROM large ORDER BY (doc ->> 'n')::int;

-- documents by chance
CREATE FUNCTION any_json(depth int) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
	n int := floor(random() * random() * 40);
	result jsonb;
BEGIN
	CASE floor(random() * CASE WHEN depth > 0 THEN 8 ELSE 6 END)
		WHEN 0 THEN RETURN 'null';
		WHEN 1 THEN RETURN to_jsonb(random() < 0.5);
		WHEN 2 THEN RETURN to_jsonb(((random() - 0.5) * 10 ^ floor(random() * 40 - 20))::numeric);
		WHEN 3 THEN RETURN to_jsonb(floor(random() * 1000)::int);
		WHEN 4, 5 THEN RETURN to_jsonb((SELECT coalesce(string_agg(chr(1 + floor(random() * random() * 500)::int), ''), '') FROM generate_series(1, n)));
		WHEN 6 THEN
			SELECT coalesce(jsonb_agg(any_json(depth - 1)), '[]') INTO result FROM generate_series(1, n);
			RETURN result;
		ELSE
			SELECT coalesce(jsonb_object_agg(chr(1 + floor(random() * 300)::int) || i, any_json(depth - 1)), '{}') INTO result FROM generate_series(1, n) AS i;
			RETURN result;
	END CASE;
END $$;
SELECT setseed(0.5);
SELECT count(*) AS documents, count(*) FILTER (WHERE test_json_text(doc) <> doc::text) AS other
  FROM (SELECT any_json(3) AS doc FROM generate_series(1, 3000)) AS d;
