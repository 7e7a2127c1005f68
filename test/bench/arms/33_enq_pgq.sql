-- title: pgq.insert_event
-- needs: pgq
-- tables: pgq.event_1%
SELECT pgq.insert_event('bench', 'OrderCreated', :payload);
