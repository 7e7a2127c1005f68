-- What a server needs, by what its users do.

-- One row for each part.  The formula that a row shows is the one that gives its value.
CREATE FUNCTION @extschema@.sizing(
	events_per_second numeric = 100,
	payload_size numeric = 500,
	outbox_retention interval = '1 day',
	outage interval = '1 day',
	remembered_ids numeric = 10000000,
	parked_events numeric = 10000,
	open_leases numeric = 1000,
	cursors numeric = 100,
	claims_per_transaction numeric = 1,
	program_relays numeric = 1,
	function_relays numeric = 1,
	databases numeric = 1,
	OUT what text, OUT value numeric, OUT unit text, OUT how text)
RETURNS SETOF record
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE COST 10000 ROWS 15
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	given jsonb := jsonb_build_object(
		'events_per_second', events_per_second, 'payload_size', payload_size,
		'outbox_retention', extract(epoch FROM outbox_retention), 'outage', extract(epoch FROM outage),
		'remembered_ids', remembered_ids, 'parked_events', parked_events, 'open_leases', open_leases,
		'cursors', cursors, 'claims_per_transaction', claims_per_transaction, 'program_relays', program_relays,
		'function_relays', function_relays, 'databases', databases);
	argument record;
BEGIN
	FOR argument IN SELECT a.key, a.value #>> '{}' AS value FROM jsonb_each(given) AS a ORDER BY a.key LOOP
		IF argument.value IS NULL THEN
			RAISE EXCEPTION 'argument "%" must not be null', argument.key
				USING ERRCODE = 'null_value_not_allowed';
		ELSIF NOT argument.value::numeric BETWEEN 0.0 AND 1e15 THEN
			RAISE EXCEPTION 'argument "%" must be between 0 and 1e15', argument.key
				USING ERRCODE = 'invalid_parameter_value';
		END IF;
	END LOOP;

	FOR what, unit, how IN VALUES
		('disk: empty database', 'bytes',
		 'databases * 1.6e6'),
		('disk: outbox', 'bytes',
		 'events_per_second * (190 + 1.4 * payload_size) * greatest(outbox_retention * 7 / 6 + 70, outage)'),
		('disk: remembered ids', 'bytes',
		 'remembered_ids * 23 + databases * 32e6'),
		('disk: free for a merge', 'bytes',
		 'least(remembered_ids, CASE WHEN remembered_ids < 10.8e6 THEN 0.7e6 WHEN remembered_ids < 172e6 THEN 10.8e6 ELSE 172e6 END) * 23'),
		('disk: parked events', 'bytes',
		 'parked_events * (500 + 1.4 * payload_size)'),
		('disk: log of leases', 'bytes',
		 'databases * 9e6 + open_leases * 400'),
		('disk: log of cursors', 'bytes',
		 'databases * 6e6 + cursors * 400'),
		('memory: keys, in shared_buffers', 'bytes',
		 'databases * 5e6'),
		('memory: relays', 'bytes',
		 'greatest(1024, program_relays + function_relays) * 1700'),
		('idempotency.max_relays', 'relays',
		 'greatest(1024, program_relays + function_relays)'),
		('idempotency.max_sink_programs', 'programs',
		 'greatest(100, program_relays)'),
		('max_files_per_process', 'files',
		 'greatest(1000, program_relays * 6 + 100)'),
		('idempotency.max_workers', 'processes',
		 'greatest(16, databases + least(function_relays, databases * 4))'),
		('max_worker_processes', 'processes',
		 '8 + 1 + databases + least(function_relays, databases * 4) + databases * 2'),
		('max_locks_per_transaction', 'locks',
		 'greatest(64, claims_per_transaction)')
	LOOP
		-- Whole numbers become numeric ones: a database may have a cast from numeric to int that
		-- is implicit, and then no operator is the best one.
		EXECUTE format('SELECT ceil(%s) FROM jsonb_to_record($1) AS a (%s)', regexp_replace(how, '(?<![0-9a-z_.])[0-9]+(?![0-9a-z_.])', E'\\&.0', 'g'),
					   (SELECT string_agg(quote_ident(k) || ' numeric', ', ') FROM jsonb_object_keys(given) AS k))
		   INTO value USING given;
		RETURN NEXT;
	END LOOP;
END
$$;
COMMENT ON FUNCTION @extschema@.sizing(numeric, numeric, interval, interval, numeric, numeric, numeric, numeric, numeric, numeric, numeric, numeric) IS
'disk, memory and settings that a load needs, a row each, with the formula over the arguments; times in seconds, sizes in bytes; reads nothing of the database';
