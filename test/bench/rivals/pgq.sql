-- A queue and a consumer of it, in PgQ from its package.
SELECT pgq.create_queue('bench');
SELECT pgq.register_consumer('bench', 'bench');
SELECT pgq.set_queue_config('bench', 'rotation_period', '1 minute');
