-- title: SELECT 1
-- about: the frame: one round trip
SELECT 1;
