-- title: pg_logical_emit_message(transactional)
-- about: WAL only; needs logical decoding to get it out
SELECT pg_logical_emit_message(true, 'order', :payload);
