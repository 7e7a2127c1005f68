-- A queue in pgmq from its own SQL.
SELECT pgmq.create('bench');
