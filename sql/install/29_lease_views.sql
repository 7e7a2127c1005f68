-- What is open: views of leases and requests.

CREATE FUNCTION idempotency_data.leases_source(
	OUT consumer text, OUT scope text, OUT event_id text, OUT state @extschema@.lease_state, OUT token bigint,
	OUT attempt int, OUT holder text, OUT since timestamptz, OUT lease_until timestamptz, OUT retry_at timestamptz,
	OUT due boolean, OUT recovery_point text, OUT last_error text, OUT expires_at timestamptz)
RETURNS SETOF record
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000 ROWS 1000
AS 'MODULE_PATHNAME', 'idem_leases_source_fn';
COMMENT ON FUNCTION idempotency_data.leases_source() IS
'source of the view leases; use the view instead';

CREATE VIEW @extschema@.leases WITH (security_barrier) AS
SELECT (p.r).consumer COLLATE "C" AS consumer,
	   (p.r).scope COLLATE "C" AS scope,
	   (p.r).event_id COLLATE "C" AS event_id,
	   (p.r).state AS state,
	   (p.r).token AS token,
	   (p.r).attempt AS attempt,
	   (p.r).holder AS holder,
	   (p.r).since AS since,
	   (p.r).lease_until AS lease_until,
	   (p.r).retry_at AS retry_at,
	   (p.r).due AS due,
	   (p.r).recovery_point AS recovery_point,
	   (p.r).last_error AS last_error,
	   (p.r).expires_at AS expires_at
  FROM (SELECT idempotency_data.leases_source() AS r) AS p;
COMMENT ON VIEW @extschema@.leases IS
'events and requests that are open, one row each: leased, waiting for another attempt, or dead; as of now at every isolation level; of consumers that the reader may claim for, or of all for operators';
COMMENT ON COLUMN @extschema@.leases.consumer IS 'who processes it';
COMMENT ON COLUMN @extschema@.leases.scope IS 'scope of the request; null: it is an event';
COMMENT ON COLUMN @extschema@.leases.event_id IS 'id of the event, or key of the request';
COMMENT ON COLUMN @extschema@.leases.state IS
'leased = a holder has it; waiting = it may be leased again, at once or later; dead = it is not tried again by itself';
COMMENT ON COLUMN @extschema@.leases.token IS 'token of the lease; null unless it is leased';
COMMENT ON COLUMN @extschema@.leases.attempt IS 'leases that were taken and not given back, this one included';
COMMENT ON COLUMN @extschema@.leases.holder IS 'what the holder of the lease, or of the last one, calls itself';
COMMENT ON COLUMN @extschema@.leases.since IS 'when it got into the state';
COMMENT ON COLUMN @extschema@.leases.lease_until IS 'when others may take it over; null unless it is leased';
COMMENT ON COLUMN @extschema@.leases.retry_at IS 'when it may be leased again; null unless it waits';
COMMENT ON COLUMN @extschema@.leases.due IS
'it may be taken over or leased now: its lease or its pause is over';
COMMENT ON COLUMN @extschema@.leases.recovery_point IS 'where the next attempt goes on';
COMMENT ON COLUMN @extschema@.leases.last_error IS
'why the last attempt failed that was released with an error';
COMMENT ON COLUMN @extschema@.leases.expires_at IS
'when it may be forgotten if nothing happens until then and the server stays up; null: not by itself';

CREATE FUNCTION idempotency_data.requests_source(
	OUT consumer text, OUT scope text, OUT key text, OUT state @extschema@.lease_state, OUT token bigint,
	OUT attempt int, OUT since timestamptz, OUT lease_until timestamptz, OUT retry_at timestamptz, OUT due boolean,
	OUT recovery_point text, OUT last_error text, OUT expires_at timestamptz, OUT request jsonb)
RETURNS SETOF record
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000 ROWS 1000
AS 'MODULE_PATHNAME', 'idem_requests_source_fn';
COMMENT ON FUNCTION idempotency_data.requests_source() IS
'source of the view requests; use the view instead';

CREATE VIEW @extschema@.requests WITH (security_barrier) AS
SELECT (p.r).consumer COLLATE "C" AS consumer,
	   (p.r).scope COLLATE "C" AS scope,
	   (p.r).key COLLATE "C" AS key,
	   (p.r).state AS state,
	   (p.r).token AS token,
	   (p.r).attempt AS attempt,
	   (p.r).since AS since,
	   (p.r).lease_until AS lease_until,
	   (p.r).retry_at AS retry_at,
	   (p.r).due AS due,
	   (p.r).recovery_point AS recovery_point,
	   (p.r).last_error AS last_error,
	   (p.r).expires_at AS expires_at,
	   (p.r).request AS request
  FROM (SELECT idempotency_data.requests_source() AS r) AS p;
COMMENT ON VIEW @extschema@.requests IS
'requests that are open, one row each, with what is needed to execute them again: leased, waiting for another attempt, or dead; as of now at every isolation level; of consumers that the reader may claim for, or of all for operators';
COMMENT ON COLUMN @extschema@.requests.consumer IS 'who executes it';
COMMENT ON COLUMN @extschema@.requests.scope IS 'whom the key belongs to';
COMMENT ON COLUMN @extschema@.requests.key IS 'idempotency key of the request';
COMMENT ON COLUMN @extschema@.requests.state IS
'leased = a holder executes it; waiting = it may be started again, at once or later; dead = it is not executed again by itself';
COMMENT ON COLUMN @extschema@.requests.token IS 'token of the lease; null unless it is leased';
COMMENT ON COLUMN @extschema@.requests.attempt IS 'attempts that were started and not given back, this one included';
COMMENT ON COLUMN @extschema@.requests.since IS 'when it got into the state';
COMMENT ON COLUMN @extschema@.requests.lease_until IS 'when others may start it; null unless it is leased';
COMMENT ON COLUMN @extschema@.requests.retry_at IS 'when it may be started again; null unless it waits';
COMMENT ON COLUMN @extschema@.requests.due IS 'it may be started now: its lease or its pause is over';
COMMENT ON COLUMN @extschema@.requests.recovery_point IS 'where the next attempt goes on';
COMMENT ON COLUMN @extschema@.requests.last_error IS 'why the last attempt failed that ended with an error';
COMMENT ON COLUMN @extschema@.requests.expires_at IS
'when it may be forgotten if nothing happens until then and the server stays up; null: not by itself';
COMMENT ON COLUMN @extschema@.requests.request IS
'what claim_request was given as what is needed to execute it again';

-- For operators

CREATE FUNCTION idempotency_data.stat_consumers_source(
	OUT consumer text, OUT is_request boolean, OUT state @extschema@.lease_state, OUT attempt int,
	OUT since timestamptz, OUT lease_until timestamptz, OUT retry_at timestamptz, OUT due boolean)
RETURNS SETOF record
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000 ROWS 1000
AS 'MODULE_PATHNAME', 'idem_stat_consumers_source_fn';
COMMENT ON FUNCTION idempotency_data.stat_consumers_source() IS
'source of the view stat_consumers; use the view instead';

CREATE FUNCTION idempotency_data.claim_verdicts(
	OUT consumer text, OUT claimed bigint, OUT duplicate bigint, OUT busy bigint, OUT expired bigint, OUT dead bigint)
RETURNS SETOF record
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000 ROWS 100
AS 'MODULE_PATHNAME', 'idem_claim_verdicts_fn';
COMMENT ON FUNCTION idempotency_data.claim_verdicts() IS
'verdicts that consumers of this database were given since the server started; a source of the view stat_consumers';

CREATE VIEW @extschema@.stat_consumers AS
SELECT o.consumer,
	   pg_catalog.bool_or(o.is_registered) AS registered,
	   pg_catalog.count(*) FILTER (WHERE o.state = 'leased' AND NOT o.due) AS leased,
	   pg_catalog.count(*) FILTER (WHERE o.state = 'leased' AND o.due) AS overdue,
	   pg_catalog.count(*) FILTER (WHERE o.state = 'waiting' AND NOT o.due) AS waiting,
	   pg_catalog.count(*) FILTER (WHERE o.state = 'waiting' AND o.due) AS ready,
	   pg_catalog.count(*) FILTER (WHERE o.state = 'dead') AS dead,
	   pg_catalog.count(*) FILTER (WHERE o.is_request) AS requests,
	   pg_catalog.max(o.attempt) FILTER (WHERE o.state <> 'dead') AS most_attempts,
	   pg_catalog.min(o.lease_until) FILTER (WHERE o.due) AS oldest_overdue,
	   pg_catalog.min(o.retry_at) FILTER (WHERE o.due) AS oldest_ready,
	   pg_catalog.min(o.since) FILTER (WHERE o.state = 'dead') AS oldest_dead,
	   pg_catalog.max(o.claimed) AS verdicts_claimed,
	   pg_catalog.max(o.duplicate) AS verdicts_duplicate,
	   pg_catalog.max(o.busy) AS verdicts_busy,
	   pg_catalog.max(o.expired) AS verdicts_expired,
	   pg_catalog.max(o.refused) AS verdicts_dead
  FROM (SELECT (p.r).consumer COLLATE "C", false, (p.r).is_request, (p.r).state, (p.r).attempt, (p.r).since,
			   (p.r).lease_until, (p.r).retry_at, (p.r).due,
			   NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint
		  FROM (SELECT idempotency_data.stat_consumers_source() AS r) AS p
		UNION ALL
		SELECT c.consumer, true, false, NULL::@extschema@.lease_state, NULL::int, NULL::timestamptz,
			   NULL::timestamptz, NULL::timestamptz, NULL::boolean,
			   NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint
		  FROM @extschema@.claim_consumers AS c
		UNION ALL
		SELECT v.consumer COLLATE "C", false, false, NULL::@extschema@.lease_state, NULL::int, NULL::timestamptz,
			   NULL::timestamptz, NULL::timestamptz, NULL::boolean,
			   v.claimed, v.duplicate, v.busy, v.expired, v.dead
		  FROM idempotency_data.claim_verdicts() AS v)
	   AS o (consumer, is_registered, is_request, state, attempt, since, lease_until, retry_at, due,
			 claimed, duplicate, busy, expired, refused)
 GROUP BY o.consumer;
COMMENT ON VIEW @extschema@.stat_consumers IS
'how many events and requests are open, and which verdicts were given: one row for each consumer that is registered, has any, or was given a verdict since the server started';
COMMENT ON COLUMN @extschema@.stat_consumers.consumer IS 'name of the consumer';
COMMENT ON COLUMN @extschema@.stat_consumers.registered IS 'it was registered by consumer_create';
COMMENT ON COLUMN @extschema@.stat_consumers.leased IS 'events and requests whose lease lasts';
COMMENT ON COLUMN @extschema@.stat_consumers.overdue IS
'events and requests whose lease is over, and that nobody has taken over: their holders are late, or gone';
COMMENT ON COLUMN @extschema@.stat_consumers.waiting IS
'events and requests whose pause after an attempt lasts';
COMMENT ON COLUMN @extschema@.stat_consumers.ready IS
'events and requests whose pause is over, and that nobody has leased since';
COMMENT ON COLUMN @extschema@.stat_consumers.dead IS
'events and requests that are not tried again by themselves: see consumer_redrive, consumer_discard';
COMMENT ON COLUMN @extschema@.stat_consumers.requests IS 'how many of all these are requests';
COMMENT ON COLUMN @extschema@.stat_consumers.most_attempts IS
'the highest number of attempts among those that are not dead';
COMMENT ON COLUMN @extschema@.stat_consumers.oldest_overdue IS
'the earliest end of a lease that is overdue';
COMMENT ON COLUMN @extschema@.stat_consumers.oldest_ready IS
'the earliest end of a pause that is over';
COMMENT ON COLUMN @extschema@.stat_consumers.oldest_dead IS
'since when one of the dead ones is dead';
COMMENT ON COLUMN @extschema@.stat_consumers.verdicts_claimed IS
'verdicts "claimed" of claims and leases since the server started, whatever became of the transaction; null in all these columns: none was given, or the library is not preloaded, or idempotency.max_counted_consumers others are counted';
COMMENT ON COLUMN @extschema@.stat_consumers.verdicts_duplicate IS 'verdicts "duplicate"';
COMMENT ON COLUMN @extschema@.stat_consumers.verdicts_busy IS 'verdicts "busy"';
COMMENT ON COLUMN @extschema@.stat_consumers.verdicts_expired IS 'verdicts "expired"';
COMMENT ON COLUMN @extschema@.stat_consumers.verdicts_dead IS 'verdicts "dead"';

-- The lock on its xid leads to all locks of a prepared transaction: its virtual
-- transaction is another one after a restart.  What has claimed or leased holds the lock
-- of the store, and what has claimed offsets or sequences that of a log (each by a constant
-- of its own, which makes the view depend on the table); an event's lock is that of one bigint, or a private one.
CREATE VIEW @extschema@.prepared_claims AS
WITH held AS MATERIALIZED (
	SELECT l.virtualtransaction, l.locktype, l.database, l.relation, l.transactionid, l.classid, l.objid, l.objsubid
	  FROM pg_catalog.pg_locks AS l
	 WHERE l.pid IS NULL AND l.granted)
SELECT p.gid, p.owner, p.prepared, pg_catalog.clock_timestamp() - p.prepared AS age,
	   (SELECT pg_catalog.count(DISTINCT (e.classid, e.objid, e.objsubid))
		  FROM held AS e
		 WHERE e.virtualtransaction = x.virtualtransaction AND e.locktype = 'advisory'
		   AND e.database = d.oid AND e.objsubid IN (1, 18756)) AS claims
  FROM pg_catalog.pg_prepared_xacts AS p
  JOIN pg_catalog.pg_database AS d ON d.datname = p.database
  JOIN held AS x ON x.locktype = 'transactionid' AND x.transactionid = p.transaction
 WHERE p.database = pg_catalog.current_database()
   AND EXISTS (SELECT FROM held AS s
				WHERE s.virtualtransaction = x.virtualtransaction AND s.locktype = 'relation'
				  AND s.database = d.oid
				  AND s.relation IN ('idempotency_data.store_state'::pg_catalog.regclass, 'idempotency_data.cursor_log_0'::pg_catalog.regclass,
					'idempotency_data.cursor_log_1'::pg_catalog.regclass, 'idempotency_data.cursor_log_2'::pg_catalog.regclass));
COMMENT ON VIEW @extschema@.prepared_claims IS
'prepared transactions of this database that have claimed, leased or completed events, or claimed offsets or sequences: these are busy until COMMIT PREPARED or ROLLBACK PREPARED, across restarts';
COMMENT ON COLUMN @extschema@.prepared_claims.gid IS 'identifier of the prepared transaction';
COMMENT ON COLUMN @extschema@.prepared_claims.owner IS 'role that prepared it';
COMMENT ON COLUMN @extschema@.prepared_claims.prepared IS 'when it was prepared';
COMMENT ON COLUMN @extschema@.prepared_claims.age IS 'for how long it has been prepared';
COMMENT ON COLUMN @extschema@.prepared_claims.claims IS
'events, requests, producers and partitions whose lock it holds; advisory locks of a bigint that it took itself count as well, and claims past the budget of locks do not';

CREATE FUNCTION idempotency_data.stat_leases_source(OUT table_bytes bigint, OUT index_bytes bigint, OUT held_by text)
RETURNS record
LANGUAGE c VOLATILE PARALLEL UNSAFE COST 10000
AS 'MODULE_PATHNAME', 'idem_stat_leases_source_fn';
COMMENT ON FUNCTION idempotency_data.stat_leases_source() IS
'source of the view stat_leases; use the view instead';

CREATE VIEW @extschema@.stat_leases AS
SELECT s.table_bytes, s.index_bytes, s.held_by,
	   (SELECT pg_catalog.count(*) FROM @extschema@.prepared_claims) AS prepared_transactions
  FROM idempotency_data.stat_leases_source() AS s;
COMMENT ON VIEW @extschema@.stat_leases IS
'what the log of leases costs and what keeps it from being shortened: one row for the database';
COMMENT ON COLUMN @extschema@.stat_leases.table_bytes IS 'size of the tables of the log, TOAST included';
COMMENT ON COLUMN @extschema@.stat_leases.index_bytes IS 'size of the indexes of the tables';
COMMENT ON COLUMN @extschema@.stat_leases.held_by IS
'what keeps a table of the log from being emptied: writer, prepared transaction, reader, or no worker (none is at work; the next leases start one); null if nothing does';
COMMENT ON COLUMN @extschema@.stat_leases.prepared_transactions IS
'prepared transactions that have claimed or leased; see prepared_claims';
