// A producer and a consumer with pgx, and the checks that ../run.sh counts.
//
// The lines between the marks are those of doc/howto/go.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// >>> producer
type Order struct {
	Order int `json:"order"`
	Total int `json:"total"`
}

// placeOrder commits the order and its event together, or neither of them.
func placeOrder(ctx context.Context, conn *pgx.Conn, order Order) (id string, err error) {
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "INSERT INTO orders VALUES ($1, $2)", order.Order, order.Total); err != nil {
			return err
		}
		return tx.QueryRow(ctx,
			"SELECT idempotency.outbox_enqueue('order', $1::text, 'OrderCreated', $2::jsonb)::text",
			fmt.Sprint(order.Order), order).Scan(&id)
	})
	return id, err
}

// <<<

// >>> consumer
// handle makes one message's effect once. After it has returned without an
// error, acknowledge all but busy.
func handle(ctx context.Context, conn *pgx.Conn, eventID string, order Order) (verdict string, err error) {
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		err := tx.QueryRow(ctx,
			"SELECT idempotency.claim_event($1::uuid, consumer => 'billing', wait => $2::interval)",
			eventID, "100 ms").Scan(&verdict)
		if err != nil || verdict != "claimed" {
			return err
		}
		if _, err := tx.Exec(ctx, "INSERT INTO invoices VALUES ($1, $2, $3::uuid)",
			order.Order, order.Total, eventID); err != nil {
			return err
		}
		_, err = tx.Exec(ctx,
			"SELECT idempotency.complete_event($1::uuid, consumer => 'billing', result => $2::jsonb)",
			eventID, map[string]int{"invoice": order.Order})
		return err
	})
	return verdict, err
}

// <<<

// >>> batch
const batch = `
	WITH message AS (
		SELECT * FROM ROWS FROM (
			idempotency.claim_events($1::uuid[]::text[], consumer => 'billing'),
			unnest($2::jsonb[])
		) AS m (ord, event_id, result, payload)
	), effect AS (
		INSERT INTO invoices (order_id, total, event_id)
		SELECT (payload->>'order')::int, (payload->>'total')::numeric, event_id::uuid
		FROM message WHERE result = 'claimed'
		RETURNING event_id
	), done AS (
		SELECT idempotency.complete_events(ARRAY(SELECT event_id::text FROM effect), consumer => 'billing')
	)
	SELECT result FROM message, done ORDER BY ord`

// handleMany is the same for many; the verdicts come in the order of the ids.
func handleMany(ctx context.Context, conn *pgx.Conn, ids []string, orders []Order) ([]string, error) {
	if len(ids) == 0 {
		return nil, nil // a nil slice would be NULL, which is an error
	}
	rows, err := conn.Query(ctx, batch, ids, orders)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// <<<

// handleBlindly is wrong: all statements are sent before the verdict is read.
func handleBlindly(ctx context.Context, conn *pgx.Conn, eventID string, order Order) error {
	statements := &pgx.Batch{}
	statements.Queue("SELECT idempotency.claim_event($1::uuid, consumer => 'billing')", eventID)
	statements.Queue("INSERT INTO invoices VALUES ($1, $2, $3::uuid)", order.Order, order.Total, eventID)
	statements.Queue("SELECT idempotency.complete_event($1::uuid, consumer => 'billing')", eventID)
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		return tx.SendBatch(ctx, statements).Close()
	})
}

// Checks

func check(name string, good bool) {
	if good {
		fmt.Println("ok", name)
	} else {
		fmt.Println("NOT OK", name)
	}
}

// fails tells whether the error has that SQLSTATE.
func fails(sqlstate string, err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == sqlstate
}

// must ends the program, so that the checks need not look at errors.
func must[T any](value T, err error) T {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return value
}

func all(verdicts []string, verdict string, n int) bool {
	for _, each := range verdicts {
		if each != verdict {
			return false
		}
	}
	return len(verdicts) == n
}

func main() {
	ctx := context.Background()
	conn := must(pgx.Connect(ctx, ""))
	other := must(pgx.Connect(ctx, ""))
	text := func(query string, args ...any) (value string) {
		must(0, conn.QueryRow(ctx, query, args...).Scan(&value))
		return value
	}
	invoices := func(id string) string {
		return text("SELECT count(*)::text FROM invoices WHERE event_id = $1::uuid", id)
	}
	newID := func() string { return text("SELECT gen_random_uuid()::text") }

	id := must(placeOrder(ctx, conn, Order{1, 99}))
	check("an event commits with its row", text("SELECT enqueued(1)::text") == "1")
	tx := must(conn.Begin(ctx))
	must(tx.Exec(ctx, "INSERT INTO orders VALUES (2, 99)"))
	must(tx.Exec(ctx, "SELECT idempotency.outbox_enqueue('order', '2', 'OrderCreated', $1::jsonb)", Order{2, 99}))
	must(0, tx.Rollback(ctx))
	check("an event is rolled back with its row",
		text("SELECT (enqueued(2) + (SELECT count(*) FROM orders WHERE id = 2))::text") == "0")

	check("claimed: the effect is made and the result is stored",
		must(handle(ctx, conn, id, Order{1, 99})) == "claimed" && invoices(id) == "1" &&
			text("SELECT idempotency.event_result($1::uuid, 'billing')->>'invoice'", id) == "1")
	check("redelivered: duplicate, and one effect",
		must(handle(ctx, conn, id, Order{1, 99})) == "duplicate" && invoices(id) == "1")
	upper := strings.ToUpper(id)
	check("an upper-case id is cast to the same event",
		must(handle(ctx, conn, upper, Order{1, 99})) == "duplicate" && invoices(id) == "1" &&
			text("SELECT status::text FROM idempotency.event_status($1::text, 'billing')", upper) == "unknown")

	busy := newID()
	tx = must(other.Begin(ctx))
	must(tx.Exec(ctx, "SELECT idempotency.claim_event($1::uuid, 'billing')", busy))
	check("busy while another session has the event",
		must(handle(ctx, conn, busy, Order{3, 1})) == "busy" && invoices(busy) == "0")
	must(0, tx.Rollback(ctx))
	_, err := handle(ctx, conn, busy, Order{1, 1})
	check("a handler that failed is tried again",
		fails("23505", err) && must(handle(ctx, conn, busy, Order{3, 1})) == "claimed" && invoices(busy) == "1")

	var ids []string
	var orders []Order
	_, err = conn.Exec(ctx, "SELECT idempotency.claim_events($1::uuid[]::text[])", ids)
	check("a nil slice is NULL, and an error", fails("22004", err) && len(must(handleMany(ctx, conn, ids, orders))) == 0)
	for n := 0; n < 50; n++ {
		ids = append(ids, newID())
		orders = append(orders, Order{100 + n, n})
	}
	ids, orders = append(ids, ids...), append(orders, orders...)
	verdicts := must(handleMany(ctx, conn, ids, orders))
	check("a batch of 100 with repeats is one statement",
		all(verdicts[:50], "claimed", 50) && all(verdicts[50:], "duplicate", 50) &&
			text("SELECT count(*)::text FROM invoices WHERE order_id >= 100") == "50" &&
			all(must(handleMany(ctx, conn, ids, orders)), "duplicate", 100))
	rows, err := conn.Query(ctx, "SELECT result::text FROM idempotency.claim_events($1::uuid[]::text[])", []string{newID()})
	_, err = pgx.CollectRows(rows, pgx.RowTo[string])
	check("a statement of its own reports that its commit failed", fails("ID001", err))

	// >>> commit
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		_, _ = tx.Exec(ctx, "SELECT 1/0") // the error is dropped
		return nil
	})
	noticed := errors.Is(err, pgx.ErrTxCommitRollback)
	// <<<
	must(conn.Exec(ctx, "BEGIN"))
	_, _ = conn.Exec(ctx, "SELECT 1/0")
	tag := must(conn.Exec(ctx, "COMMIT"))
	check("COMMIT of an aborted transaction is noticed", noticed && tag.String() == "ROLLBACK")

	blind := newID()
	must(0, handleBlindly(ctx, conn, blind, Order{5, 1}))
	check("a pipelined duplicate fails with ID002, and one statement answers it",
		fails("ID002", handleBlindly(ctx, conn, blind, Order{6, 1})) && invoices(blind) == "1" &&
			all(must(handleMany(ctx, conn, []string{blind}, []Order{{5, 1}})), "duplicate", 1))
}
