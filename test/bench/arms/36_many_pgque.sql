-- title: pgque.send_batch of 100
-- events: 100
-- needs: pgque
-- tables: pgque.event\_1%
SELECT cardinality(pgque.send_batch('bench', 'OrderCreated', array_fill(:payload::text, ARRAY[100])));
