-- A queue and a consumer of it, in PgQue from its own SQL.
SELECT pgque.create_queue('bench');
SELECT pgque.register_consumer('bench', 'bench');
