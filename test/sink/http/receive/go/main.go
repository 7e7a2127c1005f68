// Receive webhooks into PostgreSQL, each event once.  ../../receive_test.py kills it.
//
// The lines between the marks are those of doc/howto/webhooks.md.

// >>> program
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

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

// sendSms is the same for an effect that cannot be rolled back: lease, send, complete, each
// committed.  It gives Retry-After, too.
func (r *receiver) sendSms(ctx context.Context, id string, sms []byte) (status int, pause *int, err error) {
	var result string
	var token *int64
	err = r.pool.QueryRow(ctx, `SELECT result::text, token, ceil(extract(epoch FROM retry_after))::int
		FROM idempotency.lease_event($1::uuid, 'sms')`, id).Scan(&result, &token, &pause)
	if err != nil || result == "busy" {
		return http.StatusServiceUnavailable, pause, err // somebody has it, or died with it: come again when the lease is over
	}
	if result == "dead" {
		return http.StatusUnprocessableEntity, nil, nil // an operator decides
	}
	if result == "claimed" {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, "POST", os.Getenv("SMS_URL"), bytes.NewReader(sms))
		if err != nil {
			return 0, nil, err
		}
		req.Header.Set("Idempotency-Key", id)
		sent, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0, nil, err
		}
		sent.Body.Close()
		if sent.StatusCode >= 300 {
			return 0, nil, fmt.Errorf("HTTP %d", sent.StatusCode)
		}
		if _, err = r.pool.Exec(ctx, `SELECT idempotency.complete_event($1::uuid, 'sms', token => $2)`, id, token); err != nil {
			return 0, nil, err
		}
	}
	return http.StatusNoContent, nil, nil
}

func (r *receiver) status(req *http.Request) (int, *int) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return http.StatusBadRequest, nil
	}
	if !r.verified(body, req.Header) {
		return http.StatusUnauthorized, nil // not from us: the relay makes it a dead letter
	}
	if strings.HasSuffix(req.URL.Path, "/sms") {
		status, pause, err := r.sendSms(req.Context(), req.Header.Get("webhook-id"), body)
		if err == nil {
			return status, pause
		}
		log.Print(err)
		return http.StatusServiceUnavailable, nil
	}
	var o order
	if err := json.Unmarshal(body, &o); err != nil || o.Order == "" {
		return http.StatusUnprocessableEntity, nil
	}
	status, err := r.handle(req.Context(), req.Header.Get("webhook-id"), o)
	if err == nil {
		return status, nil
	}
	log.Print(err)
	var pg *pgconn.PgError
	if errors.As(err, &pg) && (strings.HasPrefix(pg.Code, "22") || strings.HasPrefix(pg.Code, "23")) {
		return http.StatusUnprocessableEntity, nil // will never do: a dead letter, to be looked at
	}
	return http.StatusServiceUnavailable, nil // the database is away: come again
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
		status, pause := r.status(req)
		if pause != nil {
			w.Header().Set("Retry-After", strconv.Itoa(*pause))
		}
		w.WriteHeader(status)
	})))
}

// <<<
