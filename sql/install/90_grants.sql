-- The privileges of each kind of role.  Nothing is granted to PUBLIC.

CREATE FUNCTION @extschema@.grant_role(kind text, role name)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE COST 10000
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	functions name[];
	relations name[];
	object text;
BEGIN
	IF kind IS NULL OR role IS NULL THEN
		RAISE EXCEPTION 'argument "%" must not be null',
			CASE WHEN kind IS NULL THEN 'kind' ELSE 'role' END
			USING ERRCODE = 'null_value_not_allowed';
	END IF;

	-- The functions that each kind may call and the views that it may read.  A name
	-- stands for all its overloads.  The functions that a view reads come with the view.
	CASE kind
	WHEN 'producer' THEN
		functions := ARRAY[
			'claim_sequence',
			'last_sequence',
			'outbox_enqueue',
			'outbox_enqueue_bytes',
			'outbox_enqueue_many',
			'register_producer'
		];
		relations := ARRAY['producers'];
	WHEN 'consumer' THEN
		functions := ARRAY[
			'advance_request',
			'assert_lease',
			'canonical_hash',
			'canonical_json',
			'claim_event',
			'claim_events',
			'claim_offset',
			'claim_request',
			'claims_backfill',
			'claims_progress',
			'claims_renew',
			'complete_event',
			'complete_events',
			'complete_request',
			'event_result',
			'event_status',
			'extend_lease',
			'fail_request',
			'lease_event',
			'lease_events',
			'lease_guard',
			'lock_key',
			'release_event',
			'release_lease',
			'release_request',
			'resume_offset',
			'version_guard'
		];
		relations := ARRAY[
			'cursors',
			'leases',
			'requests'
		];
	WHEN 'operator' THEN
		functions := ARRAY[
			'claims_import',
			'claims_maintain',
			'claims_progress',
			'consumer_alter',
			'consumer_create',
			'consumer_discard',
			'consumer_drop',
			'consumer_redrive',
			'doctor',
			'event_status',
			'forget_event',
			'producer_drop',
			'relay_adopt',
			'relay_alter',
			'relay_check',
			'relay_create',
			'relay_discard',
			'relay_drop',
			'relay_pause',
			'relay_redrive',
			'relay_replay',
			'relay_resume',
			'reset_offset',
			'sink_setup',
			'sink_setup_sql',
			'sizing',
			'verify_lock_key'
		];
		relations := ARRAY[
			'claim_consumers',
			'cursors',
			'dead_letters',
			'leases',
			'outbox_events',
			'prepared_claims',
			'processed_events',
			'producers',
			'requests',
			'stat_claim_segments',
			'stat_claims',
			'stat_consumers',
			'stat_cursors',
			'stat_leases',
			'stat_outbox',
			'stat_progress',
			'stat_relay',
			'watch'
		];
	WHEN 'monitor' THEN
		functions := ARRAY[
			'doctor',
			'sizing'
		];
		relations := ARRAY[
			'claim_consumers',
			'stat_claim_segments',
			'stat_claims',
			'stat_consumers',
			'stat_cursors',
			'stat_leases',
			'stat_outbox',
			'stat_progress',
			'stat_relay',
			'watch'
		];
	WHEN 'backup' THEN
		-- all that pg_dump locks and reads: any table and sequence of the other schema
		functions := '{}';
		relations := '{}';
	ELSE
		RAISE EXCEPTION 'unknown kind of role "%"', kind
			USING ERRCODE = 'invalid_parameter_value',
				HINT = 'Use producer, consumer, operator, monitor or backup.';
	END CASE;

	-- GRANT would take the name "public" for everybody; here it is an error.
	PERFORM FROM pg_roles r WHERE r.rolname = grant_role.role;
	IF NOT FOUND THEN
		RAISE EXCEPTION 'role "%" does not exist', role
			USING ERRCODE = 'undefined_object';
	END IF;

	FOR object IN
		SELECT format(CASE d.classid
					  WHEN 'pg_proc'::regclass THEN
						  (SELECT 'EXECUTE ON ROUTINE ' || p.oid::regprocedure
							 FROM pg_proc p
							WHERE p.oid = d.objid
							  AND (p.pronamespace = '@extschema@'::regnamespace AND p.proname = ANY (functions)
								   OR EXISTS (SELECT FROM pg_depend u
												JOIN pg_rewrite r ON r.oid = u.objid
												JOIN pg_class v ON v.oid = r.ev_class
											   WHERE u.classid = 'pg_rewrite'::regclass
												 AND u.refclassid = 'pg_proc'::regclass
												 AND u.refobjid = p.oid
												 AND v.relnamespace = '@extschema@'::regnamespace
												 AND v.relname = ANY (relations))))
					  WHEN 'pg_class'::regclass THEN
						  (SELECT 'SELECT ON ' || c.oid::regclass
							 FROM pg_class c
							WHERE c.oid = d.objid
							  AND CASE c.relnamespace WHEN 'idempotency_data'::regnamespace THEN kind = 'backup'
								  ELSE c.relname = ANY (relations) END)
					  WHEN 'pg_type'::regclass THEN
						  (SELECT 'USAGE ON TYPE ' || t.oid::regtype
							 FROM pg_type t
							WHERE t.oid = d.objid AND t.typtype = 'e' AND kind <> 'backup')
					  END)
		  FROM pg_depend d
		  JOIN pg_extension e ON e.oid = d.refobjid
		 WHERE d.refclassid = 'pg_extension'::regclass
		   AND d.deptype = 'e'
		   AND e.extname = 'idempotency'
	LOOP
		CONTINUE WHEN object IS NULL;
		EXECUTE format('GRANT %s TO %I', object, role);
	END LOOP;
	EXECUTE format('GRANT USAGE ON SCHEMA %s TO %I',
				   CASE kind WHEN 'backup' THEN 'idempotency_data' ELSE '@extschema@' END, role);
END
$$;
COMMENT ON FUNCTION @extschema@.grant_role(kind text, role name) IS
'grant a role the privileges of a kind: producer enqueues, consumer claims, operator manages relays and consumers, monitor reads stat_*, backup dumps';

-- Only the owner keeps privileges.  This revokes the privileges that PUBLIC has by
-- default, and those that ALTER DEFAULT PRIVILEGES of the installing role gave.
DO $$
DECLARE
	object text;
	grantee oid;
BEGIN
	FOR object, grantee IN
		WITH member AS (
			SELECT CASE WHEN n.oid IS NOT NULL THEN 'SCHEMA ' || n.oid::pg_catalog.regnamespace
						WHEN p.oid IS NOT NULL THEN 'ROUTINE ' || p.oid::pg_catalog.regprocedure
						WHEN c.relkind = 'S' THEN 'SEQUENCE ' || c.oid::pg_catalog.regclass
						WHEN c.oid IS NOT NULL THEN 'TABLE ' || c.oid::pg_catalog.regclass
						ELSE 'TYPE ' || t.oid::pg_catalog.regtype END AS object,
				   COALESCE(n.nspowner, p.proowner, c.relowner, t.typowner) AS owner,
				   COALESCE(n.nspacl, p.proacl, c.relacl, t.typacl, pg_catalog.acldefault(
					   CASE WHEN n.oid IS NOT NULL THEN 'n'::"char" WHEN p.oid IS NOT NULL THEN 'f' WHEN t.oid IS NOT NULL THEN 'T'
							WHEN c.relkind = 'S' THEN 's' ELSE 'r' END,
					   COALESCE(n.nspowner, p.proowner, c.relowner, t.typowner))) AS acl
			  FROM pg_catalog.pg_depend d
			  JOIN pg_catalog.pg_extension e ON e.oid = d.refobjid
			  LEFT JOIN pg_catalog.pg_namespace n
				ON d.classid = 'pg_catalog.pg_namespace'::pg_catalog.regclass AND n.oid = d.objid
			  LEFT JOIN pg_catalog.pg_proc p
				ON d.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND p.oid = d.objid
			  LEFT JOIN pg_catalog.pg_class c
				ON d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND c.oid = d.objid
				   AND c.relkind IN ('r', 'v', 'S')
			  LEFT JOIN pg_catalog.pg_type t
				ON d.classid = 'pg_catalog.pg_type'::pg_catalog.regclass AND t.oid = d.objid
				   AND t.typtype IN ('e', 'd')
			 WHERE d.refclassid = 'pg_catalog.pg_extension'::pg_catalog.regclass
			   AND d.deptype = 'e'
			   AND e.extname = 'idempotency'
			   AND (n.oid IS NOT NULL OR p.oid IS NOT NULL OR c.oid IS NOT NULL OR t.oid IS NOT NULL))
		SELECT DISTINCT m.object, a.grantee
		  FROM member m, pg_catalog.aclexplode(m.acl) a
		 WHERE a.grantee <> m.owner
	LOOP
		EXECUTE pg_catalog.format('REVOKE ALL ON %s FROM %s', object,
			CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::pg_catalog.regrole::text END);
	END LOOP;
END
$$;

SELECT @extschema@.grant_role('monitor'::text, 'pg_monitor'::name);
