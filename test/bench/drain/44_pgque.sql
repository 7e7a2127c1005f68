-- title: PgQue, one batch of all
-- about: next_batch, get_batch_events to the client, finish_batch
-- needs: pgque
-- batch: all
-- reset: TRUNCATE pgque.event_1_0, pgque.event_1_1, pgque.event_1_2; SELECT pgque.force_tick('bench'); SELECT pgque.ticker('bench'); SELECT pgque.unregister_consumer('bench', 'bench'); SELECT pgque.register_consumer('bench', 'bench')
-- fill: SELECT count(pgque.send('bench', 'OrderCreated', :payload::text)) FROM generate_series(1, 100) g
-- ready: SELECT pgque.force_tick('bench'); SELECT pgque.ticker('bench')
-- left: SELECT count(*) FROM pgque.event_1 WHERE NOT pg_visible_in_snapshot(ev_txid, (SELECT t.tick_snapshot FROM pgque.tick t JOIN pgque.subscription s ON s.sub_queue = t.tick_queue AND s.sub_last_tick = t.tick_id WHERE t.tick_queue = 1))
SELECT pgque.next_batch('bench', 'bench') AS batch \gset
SELECT * FROM pgque.get_batch_events(:batch);
SELECT pgque.finish_batch(:batch);
