-- title: PgQ, one batch of all
-- about: next_batch, get_batch_events to the client, finish_batch
-- needs: pgq
-- batch: all
-- reset: TRUNCATE pgq.event_1_0, pgq.event_1_1, pgq.event_1_2; SELECT pgq.force_tick('bench'); SELECT pgq.ticker('bench'); SELECT pgq.unregister_consumer('bench', 'bench'); SELECT pgq.register_consumer('bench', 'bench')
-- fill: SELECT count(pgq.insert_event('bench', 'OrderCreated', :payload)) FROM generate_series(1, 100) g
-- ready: SELECT pgq.force_tick('bench'); SELECT pgq.ticker('bench')
-- left: SELECT count(*) FROM pgq.event_1 WHERE NOT txid_visible_in_snapshot(ev_txid, (SELECT t.tick_snapshot FROM pgq.tick t JOIN pgq.subscription s ON s.sub_queue = t.tick_queue AND s.sub_last_tick = t.tick_id WHERE t.tick_queue = 1))
SELECT pgq.next_batch('bench', 'bench') AS batch \gset
SELECT * FROM pgq.get_batch_events(:batch);
SELECT pgq.finish_batch(:batch);
