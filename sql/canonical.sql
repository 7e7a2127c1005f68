-- canonical_json and canonical_hash: the form of RFC 8785, beyond doubles too.
\set VERBOSITY terse
\set SHOW_CONTEXT never

-- A document in every kind of value, written by the rules of RFC 8785
SELECT idempotency.canonical_json($$ { "string" : "\u20ac$\u000F\nA'\u0042\u0022\u005c\\\"\/",
  "numbers" : [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
  "literals" : [ null , true, false ], "empty": [{}, [], ""] } $$);
SELECT doc, idempotency.canonical_json(doc::jsonb)
  FROM (VALUES ('null'), ('true'), ('"a"'), ('1.50'), ('[]'), ('{}'), (' [ 1 , [ ] ] '), ('[[[{"a":[{"b":{}}]}]]]')) AS t (doc);

-- Strings: seven short escapes, \u00xx in lower case, all else as it is
SELECT n, idempotency.canonical_json(to_jsonb(chr(n))) FROM generate_series(1, 34) n;
SELECT n, idempotency.canonical_json(to_jsonb(chr(n))) = '"' || chr(n) || '"' AS as_it_is
  FROM unnest(ARRAY[47, 60, 127, 128, 159, 160, 173, 8232, 8233, 65279, 65533, 65535, 65536, 1114111]) n;
SELECT idempotency.canonical_json('"\ud83d\ude00 \u00e9 e\u0301"') = '"' || chr(128512) || ' ' || chr(233) || ' e' || chr(769) || '"' AS pairs_joined_nothing_composed;

-- Keys: by UTF-16 code units, neither by length, as jsonb has them, nor by bytes:
-- a character from U+10000 on comes before U+E000 and what follows
SELECT idempotency.canonical_json('{"b":1, "aa":2, "a":3, "":4, "B":5, "10":6, "9":7, "a b":8, "ab":9}');
SELECT regexp_replace(idempotency.canonical_json(
	   '{"\u20ac": 1, "\r": 2, "\ufb33": 3, "1": 4, "\ud83d\ude00": 5, "\u0080": 6, "\u00f6": 7}'), '[^0-9,:]', '', 'g') AS order_of_members;
SELECT string_agg(format('U+%s', to_hex(ascii(key))), ' ' ORDER BY n) AS order_of_keys
  FROM regexp_split_to_table(idempotency.canonical_json((SELECT jsonb_object_agg(chr(c), 0)
		 FROM unnest(ARRAY[65, 127, 128, 2047, 2048, 55295, 57344, 65535, 65536, 66047, 1048576, 1114111]) c)), '[{,]') WITH ORDINALITY t (member, n),
	   LATERAL (SELECT substr(member, 2, 1) AS key) k
 WHERE member <> '';
SELECT idempotency.canonical_json(jsonb_build_object(chr(65535) || 'a', 1, chr(65535), 2, chr(65536) || 'b', 3, chr(65536) || chr(65535), 4))
	   = format('{"%s":3,"%s":4,"%s":2,"%s":1}', chr(65536) || 'b', chr(65536) || chr(65535), chr(65535), chr(65535) || 'a') AS common_beginnings;

-- Of a repeated key jsonb keeps the last one
SELECT idempotency.canonical_json('{"a": 1, "b": 2, "a": 3}');

-- Numbers: ECMAScript's form of a double
SELECT n, idempotency.canonical_json(n::jsonb)
  FROM unnest(ARRAY['0', '-0', '-0.0', '0e10', '0E-20', '1', '1.0', '1e0', '10e-1', '-1.50', '100', '1e2', '0.1', '0.10',
	'123456789012345680000', '100000000000000000000', '999999999999999900000', '1e20', '1e21', '1.5e21', '-1e21',
	'123e19', '1e22', '0.000001', '1e-6', '0.00000123', '1e-7', '1.5e-7', '-1e-7', '0.0000001',
	'5e-324', '2.2250738585072014e-308', '1.7976931348623157e308', '-1.7976931348623157E+308',
	'9007199254740991', '9007199254740992', '9007199254740994', '295147905179352830000', '333333333.3333333',
	'4.35', '0.000035689', '1424953923781206.2']) WITH ORDINALITY t (n, i) ORDER BY i;
-- and all digits of what no double holds: two amounts stay two
SELECT n, idempotency.canonical_json(n::jsonb)
  FROM unnest(ARRAY['9007199254740993', '-9007199254740993', '0.1000000000000000055511151231257827021181583404541015625',
	'0.10000000000000001', '18446744073709551615', '1180591620717411303424', '123456789012345678901', '1234567890123456789012',
	'1e400', '-1e400', '1E-400', '1.50e400', '4e-324', '1e131071', '1e-16383', '12345678901234567890123456789.5',
	'0.00000012345678901234567890', '10000000000000000000000000000000000000001']) WITH ORDINALITY t (n, i) ORDER BY i;
SELECT length(c), left(c, 5), right(c, 12), c::jsonb = n::jsonb AS equal
  FROM (VALUES ('1' || repeat('0', 131071) || '.' || repeat('0', 16382) || '7'), (repeat('9', 131072) || '.' || repeat('9', 16383))) AS t (n),
	   LATERAL idempotency.canonical_json(n::jsonb) c;
SELECT length(idempotency.canonical_json('[1e400]')) AS not_403, length('[1e400]'::jsonb::text);
-- as doubles of any size: back to the same double, of as few digits as the server's own shortest form
SELECT setseed(0.5) IS NOT NULL AS seeded;
CREATE TABLE doubles AS
SELECT d, idempotency.canonical_json(to_jsonb(d)) AS c
  FROM (SELECT ((random() - 0.5) * 10 ^ (floor(random() * 600) - 300))::float8 FROM generate_series(1, 5000)
		UNION ALL SELECT floor(random() * 10 ^ (random() * 30)) FROM generate_series(1, 2000)
		UNION ALL SELECT 2::float8 ^ e FROM generate_series(-1074, 1023) e
		UNION ALL SELECT 10::float8 ^ e FROM generate_series(-320, 308) e) AS t (d);
SELECT count(*) > 9000 AS many,
	   count(*) FILTER (WHERE c::float8 <> d) AS wrong,
	   count(*) FILTER (WHERE regexp_replace(split_part(c, 'e', 1), '^-?0*\.?0*|\.|0+$', '', 'g') <>
		   regexp_replace(regexp_replace(split_part(d::text, 'e', 1), '^(-?\d+)\.?(\d*)$', '\1\2'), '^-?0*|0+$', '', 'g')) AS other_digits,
	   count(*) FILTER (WHERE (c ~ 'e') <> (abs(d) >= 1e21 OR abs(d) < 1e-6 AND d <> 0)) AS other_exponent,
	   count(*) FILTER (WHERE c !~ '^-?(0|[1-9]\d*)(\.\d*[1-9])?(e[+-][1-9]\d*)?$') AS other_form
  FROM doubles;

-- What is equal to jsonb has one text, and what is not has two; the text is JSON, and its own canonical form
CREATE TABLE documents (doc jsonb);
INSERT INTO documents VALUES ('1'), ('1.0'), ('1e0'), ('"1"'), ('[1]'), ('[1.00]'), ('[[1]]'), ('{"1":1}'), ('{"1":1.0}'), ('{"1":"1"}'),
	('null'), ('"null"'), ('[]'), ('{}'), ('[{}]'), ('""'), ('"\\"'), ('"\\\\"'), ('["a","b"]'), ('["a,b"]'), ('["a\",\"b"]'),
	('[9007199254740993]'), ('[9007199254740992]'), ('[1,2]'), ('[2,1]'), ('[12]'), ('{"a":1,"b":2}'), ('{"b":2,"a":1}'), ('{"a":2,"b":1}'),
	('{"a":{"b":1}}'), ('{"a":{},"b":1}'), ('true'), ('"true"'), ('[null]'), ('[1e400]'), ('[1e401]'), ('[1e-400]');
SELECT count(*) AS pairs,
	   count(*) FILTER (WHERE (a.doc = b.doc) <> (idempotency.canonical_json(a.doc) = idempotency.canonical_json(b.doc))) AS texts_wrong,
	   count(*) FILTER (WHERE (a.doc = b.doc) <> (idempotency.canonical_hash(a.doc) = idempotency.canonical_hash(b.doc))) AS hashes_wrong,
	   count(*) FILTER (WHERE idempotency.canonical_json(a.doc)::jsonb <> a.doc) AS other_documents,
	   count(*) FILTER (WHERE idempotency.canonical_json(idempotency.canonical_json(a.doc)::jsonb) <> idempotency.canonical_json(a.doc)) AS not_stable
  FROM documents a, documents b;

-- The hash: SHA-256 of the text in UTF-8
SELECT count(*) AS compared, count(*) FILTER (WHERE idempotency.canonical_hash(doc) =
	   sha256(convert_to(idempotency.canonical_json(doc), 'UTF8'))) AS equal
  FROM (SELECT doc FROM documents UNION ALL SELECT to_jsonb(chr(233) || repeat(chr(8364), n)) FROM generate_series(0, 100) n
		UNION ALL SELECT to_jsonb(repeat('x', 3000000 + n)) FROM generate_series(0, 2) n) AS t (doc);
SELECT encode(idempotency.canonical_hash('{"b": 1.0, "a": "\u00e9"}'), 'hex') =
	   encode(sha256('\x7b2261223a22c3a9222c2262223a317d'), 'hex') AS by_hand;

-- Fields: the object with a member per pointer
CREATE FUNCTION same(doc jsonb, fields text[], object jsonb) RETURNS boolean LANGUAGE sql AS
$$ SELECT idempotency.canonical_hash(doc, fields) = idempotency.canonical_hash(object) $$;
\set doc '''{"a": {"b": [10, {"c": null}], "": 1, "x/y": 2, "m~n": 3, "~1": 4, "0": 5, "-": 6}, "": {"": 7}, "a/b": 8, "é": 9}'''
SELECT fields, same(:doc, fields::text[], object::jsonb)
  FROM (VALUES
	('{/a/b/0}', '{"/a/b/0": 10}'),
	('{/a/b/1/c}', '{"/a/b/1/c": null}'),
	('{/a/b}', '{"/a/b": [10, {"c": null}]}'),
	('{/a/}', '{"/a/": 1}'),
	('{/}', '{"/": {"": 7}}'),
	('{//}', '{"//": 7}'),
	('{/a/x~1y}', '{"/a/x~1y": 2}'),
	('{/a~1b}', '{"/a~1b": 8}'),
	('{/a/m~0n}', '{"/a/m~0n": 3}'),
	('{/a/~01}', '{"/a/~01": 4}'),
	('{/a/0,/a/-}', '{"/a/0": 5, "/a/-": 6}'),
	('{/é,/a/b/0}', '{"/a/b/0": 10, "/é": 9}'),
	('[5:6]={/é,/a/b/0}', '{"/a/b/0": 10, "/é": 9}')) AS t (fields, object)
 ORDER BY fields COLLATE "C";
SELECT same(:doc, '{""}', jsonb_build_object('', :doc::jsonb)) AS whole,
	   same('7', '{""}', '{"": 7}') AS whole_scalar,
	   idempotency.canonical_hash(:doc, NULL) = idempotency.canonical_hash(:doc) AS no_fields;
-- neither names nor values run together, and the order says nothing
SELECT idempotency.canonical_hash('{"a": "a", "b": "bc"}', '{/a,/b}') <> idempotency.canonical_hash('{"a": "ab", "b": "c"}', '{/a,/b}') AS values_apart,
	   idempotency.canonical_hash('{"a": 1, "b": 12}', '{/a,/b}') <> idempotency.canonical_hash('{"a": 11, "b": 2}', '{/a,/b}') AS numbers_apart,
	   idempotency.canonical_hash('{"a": 1, "bc": 2}', '{/a,/bc}') <> idempotency.canonical_hash('{"ab": 1, "c": 2}', '{/ab,/c}') AS names_apart,
	   idempotency.canonical_hash('{"a": 1, "b": 2}', '{/a,/b}') <> idempotency.canonical_hash('{"a": 2, "b": 1}', '{/a,/b}') AS not_swapped,
	   idempotency.canonical_hash('{"a": 1, "b": 2}', '{/a,/b}') = idempotency.canonical_hash('{"b": 2, "a": 1}', '{/b,/a}') AS any_order,
	   idempotency.canonical_hash('{"a": 1, "b": 2}', '{/a}') = idempotency.canonical_hash('{"a": 1, "b": 3}', '{/a}') AS others_ignored,
	   idempotency.canonical_hash('{"a": null}', '{/a}') <> idempotency.canonical_hash('{"a": "null"}', '{/a}') AS null_is_a_value;

-- Misuse: each is an error
CREATE FUNCTION try(call text, OUT state text, OUT message text, OUT hint text) LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE 'SELECT idempotency.' || call;
	state := 'none';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS hint = PG_EXCEPTION_HINT;
	state := sqlstate;
	message := sqlerrm;
END $$;
SELECT state, message FROM unnest(ARRAY[
	$$canonical_json(NULL)$$, $$canonical_hash(NULL)$$, $$canonical_hash(NULL, '{/a}')$$,
	$$canonical_hash('{"a": 1}', '{/b}')$$, $$canonical_hash('{"a": 1}', '{/a,/a/b}')$$, $$canonical_hash('{"a": [1]}', '{/a/1}')$$,
	$$canonical_hash('{"a": [1]}', '{/a/-}')$$, $$canonical_hash('{"a": [1]}', '{/a/00}')$$, $$canonical_hash('{"a": [1]}', '{/a/+0}')$$,
	$$canonical_hash('{"a": [1]}', '{/a/4294967296}')$$, $$canonical_hash('{"a": [1]}', '{/a/18446744073709551616}')$$,
	$$canonical_hash('{"a": [1]}', '{/a/}')$$, $$canonical_hash('{"a": [1]}', '{/a/0/}')$$, $$canonical_hash('{"a": [1]}', '{/A}')$$,
	$$canonical_hash('1', '{/0}')$$, $$canonical_hash('[1]', '{/}')$$,
	$$canonical_hash('{"a": 1}', '{a}')$$, $$canonical_hash('{"a": 1}', '{/a,a}')$$, $$canonical_hash('{"a": 1}', '{/a~}')$$, $$canonical_hash('{"a": 1}', '{/~2}')$$,
	$$canonical_hash('{"a": 1}', '{/a,/a}')$$, $$canonical_hash('{"a": 1, "b": 2}', '{/a,/b,/a}')$$, $$canonical_hash('1', '{"",""}')$$,
	$$canonical_hash('{"a": 1}', '{}')$$, $$canonical_hash('{"a": 1}', '{/a,NULL}')$$, $$canonical_hash('{"a": 1}', '{{/a},{/a}}')$$,
	$$canonical_hash('{"a": 1}', ARRAY['/' || repeat('x', 1024)])$$]) WITH ORDINALITY c (call, n), try(call) ORDER BY n;
SELECT DISTINCT hint FROM unnest(ARRAY[
	$$canonical_hash('{"a": 1}', '{/b}')$$, $$canonical_hash('{"a": 1}', '{a}')$$, $$canonical_hash('{"a": 1}', '{}')$$]) c (call), try(call) ORDER BY hint;

-- Depth: the server's check of the stack, not a crash
SELECT length(idempotency.canonical_json((repeat('[', 1000) || repeat(']', 1000))::jsonb)) AS deep,
	   length(idempotency.canonical_json((repeat('{"a":', 1000) || '1' || repeat('}', 1000))::jsonb)) AS deep_objects;
CREATE TABLE deep AS SELECT (repeat('[', 1500) || repeat(']', 1500))::jsonb AS doc;
SET max_stack_depth = '100kB';
SELECT state FROM try('canonical_json(doc) FROM deep');
SELECT state FROM try('canonical_hash(doc) FROM deep');
RESET max_stack_depth;
SELECT state FROM try('canonical_json(doc) FROM deep');
-- Size: numbers stay short, and wide objects are sorted
SELECT length(idempotency.canonical_json((SELECT jsonb_agg((i || 'e131000')::numeric) FROM generate_series(1, 20) i))) AS short_numbers;
SELECT md5(idempotency.canonical_json((SELECT jsonb_object_agg(i::text, i) FROM generate_series(1, 50000) i))) =
	   md5('{' || (SELECT string_agg(format('"%s":%s', i, i), ',' ORDER BY i::text COLLATE "C") FROM generate_series(1, 50000) i) || '}') AS wide;

-- Privileges and properties
CREATE ROLE regress_canonical_consumer;
SELECT idempotency.grant_role('consumer', 'regress_canonical_consumer');
SET ROLE regress_canonical_consumer;
SELECT idempotency.canonical_json(document => '[1.0]'), length(idempotency.canonical_hash(document => '{"a": 1}', fields => '{/a}'));
RESET ROLE;
DROP OWNED BY regress_canonical_consumer;
SELECT has_function_privilege('regress_canonical_consumer', p.oid, 'EXECUTE') FROM pg_proc p
 WHERE pronamespace = 'idempotency'::regnamespace AND proname LIKE 'canonical%';
DROP ROLE regress_canonical_consumer;
SELECT proname, provolatile, proparallel, proisstrict FROM pg_proc
 WHERE pronamespace = 'idempotency'::regnamespace AND proname LIKE 'canonical%' ORDER BY 1;
CREATE INDEX ON documents (idempotency.canonical_hash(doc));
