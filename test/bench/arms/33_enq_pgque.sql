-- title: pgque.send
-- needs: pgque
-- tables: pgque.event\_1%
SELECT pgque.send('bench', 'OrderCreated', :payload::text);
