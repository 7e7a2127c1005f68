// Receive webhooks into PostgreSQL, each event once.  ../../receive_test.py kills it.
//
// The lines between the marks are those of doc/howto/webhooks.md.

// >>> program
package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net/http"
	"os"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	webhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

type receiver struct {
	hooks []*webhooks.Webhook // several, while one secret takes the place of another
	pool  *pgxpool.Pool
}

type order struct {
	Order string      `json:"order"`
	Total json.Number `json:"total"`
}

// verified tells whether one of the secrets has signed the body within the last five
// minutes.
func (r *receiver) verified(body []byte, headers http.Header) bool {
	for _, hook := range r.hooks {
		if hook.Verify(body, headers) == nil {
			return true
		}
	}
	return false
}

// handle gives the status of the answer.  Claim and effect commit together.
func (r *receiver) handle(ctx context.Context, id string, o order) (status int, err error) {
	status = http.StatusNoContent // also for a duplicate: it was handled before
	err = pgx.BeginFunc(ctx, r.pool, func(tx pgx.Tx) error {
		var claim string
		if err := tx.QueryRow(ctx, `SELECT idempotency.claim_event($1::uuid, consumer => 'billing')::text`, id).Scan(&claim); err != nil {
			return err
		}
		switch claim {
		case "busy":
			status = http.StatusServiceUnavailable // another request has it right now: come again
		case "claimed":
			if _, err := tx.Exec(ctx, `INSERT INTO invoices VALUES ($1, $2::text::numeric, $3::uuid)`, o.Order, o.Total.String(), id); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, `SELECT idempotency.complete_event($1::uuid, consumer => 'billing')`, id)
			return err
		}
		return nil
	})
	return status, err
}

func (r *receiver) status(req *http.Request) int {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return http.StatusBadRequest
	}
	if !r.verified(body, req.Header) {
		return http.StatusUnauthorized // not from us: the relay makes it a dead letter
	}
	var o order
	if err := json.Unmarshal(body, &o); err != nil || o.Order == "" {
		return http.StatusUnprocessableEntity
	}
	status, err := r.handle(req.Context(), req.Header.Get("webhook-id"), o)
	if err == nil {
		return status
	}
	log.Print(err)
	var pg *pgconn.PgError
	if errors.As(err, &pg) && (strings.HasPrefix(pg.Code, "22") || strings.HasPrefix(pg.Code, "23")) {
		return http.StatusUnprocessableEntity // will never do: a dead letter, to be looked at
	}
	return http.StatusServiceUnavailable // the database is away: come again
}

func main() {
	pool, err := pgxpool.New(context.Background(), "")
	if err != nil {
		log.Fatal(err)
	}
	r := &receiver{pool: pool}
	for _, secret := range strings.Fields(os.Getenv("WEBHOOK_SECRETS")) {
		hook, err := webhooks.NewWebhook(secret)
		if err != nil {
			log.Fatal("a secret is not one of Standard Webhooks")
		}
		r.hooks = append(r.hooks, hook)
	}
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Args[1], http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.WriteHeader(r.status(req))
	})))
}

// <<<
