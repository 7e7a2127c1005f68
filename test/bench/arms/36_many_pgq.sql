-- title: pgq.insert_event over 100 rows
-- about: it has no bulk call
-- events: 100
-- needs: pgq
-- tables: pgq.event_1%
SELECT count(pgq.insert_event('bench', 'OrderCreated', :payload)) FROM generate_series(1, 100) g;
