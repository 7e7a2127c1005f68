-- One transfer, for pgbench.  The event commits with the money or not at all;
-- every twentieth is rolled back on purpose.
\set src random(1, 200)
\set dst 1 + (:src + random(1, 199) - 1) % 200
\set low least(:src, :dst)
\set high greatest(:src, :dst)
\set amount random(1, 50)
\set low_change case when :low = :src then -:amount else :amount end
\set roll_back random(1, 20)
BEGIN;
UPDATE account SET balance = balance + :low_change WHERE id = :low;
UPDATE account SET balance = balance - :low_change WHERE id = :high;
SELECT idempotency.outbox_enqueue('transfer', '' || :src, 'MoneyMoved',
	jsonb_build_object('src', :src, 'dst', :dst, 'amount', :amount)) AS event_id \gset
INSERT INTO transfer VALUES (':event_id', :src, :dst, :amount);
\if :roll_back = 20
ROLLBACK;
INSERT INTO rolled_back VALUES (':event_id');
\else
COMMIT;
\endif
