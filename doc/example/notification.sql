-- The notification service's database.  No constraint forbids a second notification: the claim does.
CREATE EXTENSION idempotency CASCADE;
CREATE TABLE notifications (shift bigint NOT NULL, worker text NOT NULL);
CREATE ROLE notification LOGIN;
GRANT INSERT ON notifications TO notification;
SELECT idempotency.grant_role('consumer', 'notification');
