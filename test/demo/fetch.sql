-- Fetch up to 20 messages in no particular order, so that consumers collide,
-- and handle them one by one.
\set ON_ERROR_STOP on
SELECT format(E'\\set event_id %s\n\\ir consume.sql', event_id)
	FROM inbox WHERE NOT acked ORDER BY random() LIMIT 20 \g :batch
\i :batch
