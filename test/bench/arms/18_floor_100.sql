-- title: bare INSERT of 100 rows, uuid key
-- about: floor of 100 claims: nothing is looked up, no lock is taken, and there is no digest to make
-- events: 100
-- tables: bench.floor_claim
INSERT INTO bench.floor_claim SELECT gen_random_uuid() FROM generate_series(1, 100);
