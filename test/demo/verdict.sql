-- Compare B with what was copied from A into committed, rolled_back and
-- bank_account.  Prints one "name|value" per line; only tables written by the
-- producers and the handler are asked, no view of the extension's.
\set ON_ERROR_STOP on
CREATE INDEX ON committed (event_id);
CREATE INDEX ON entry (event_id);
ANALYZE committed, entry, inbox;

SELECT 'enqueued', count(*) FROM committed
UNION ALL SELECT 'rolled_back', count(*) FROM rolled_back
UNION ALL SELECT 'delivered', count(*) FROM inbox
UNION ALL SELECT 'repeated', count(*) FROM inbox WHERE repeated
UNION ALL SELECT 'refused', count(*) FROM refused
UNION ALL SELECT 'effects', count(*) FROM entry
-- committed, and not in the inbox
UNION ALL SELECT 'undelivered', count(*) FROM committed c
	WHERE NOT EXISTS (SELECT FROM inbox i WHERE i.event_id = c.event_id)
-- committed, and without its own effect
UNION ALL SELECT 'lost', count(*) FROM committed c
	WHERE NOT EXISTS (SELECT FROM entry e WHERE (e.event_id, e.src, e.dst, e.amount) = (c.event_id, c.src, c.dst, c.amount))
UNION ALL SELECT 'doubled', count(*) - count(DISTINCT event_id) FROM entry
-- never committed, and yet delivered or booked
UNION ALL SELECT 'phantoms', count(*) FROM (SELECT event_id FROM inbox UNION SELECT event_id FROM entry) b
	WHERE NOT EXISTS (SELECT FROM committed c WHERE c.event_id = b.event_id)
UNION ALL SELECT 'undone', count(*) FROM rolled_back r
	WHERE EXISTS (SELECT FROM entry e WHERE e.event_id = r.event_id)
UNION ALL SELECT 'bank_sum', sum(balance) FROM bank_account
UNION ALL SELECT 'ledger_sum', sum(balance) FROM account
UNION ALL SELECT 'money', COALESCE(sum(abs(COALESCE(a.balance, 0) - COALESCE(b.balance, 0))), 0)
	FROM account a FULL JOIN bank_account b USING (id);
