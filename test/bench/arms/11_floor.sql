-- title: bare INSERT, uuid key
-- about: floor of a claim
-- tables: bench.floor_claim
INSERT INTO bench.floor_claim VALUES (gen_random_uuid());
