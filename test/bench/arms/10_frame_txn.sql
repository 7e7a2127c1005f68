-- title: BEGIN, SELECT 1, SELECT 1, COMMIT
-- about: the frame of a claim in a transaction: four round trips
BEGIN;
SELECT 1;
SELECT 1;
COMMIT;
