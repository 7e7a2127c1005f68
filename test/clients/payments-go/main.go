// The payment API of doc/howto/payments.md, which shows the lines between the marks.
//
//	payments PORT         serve on 127.0.0.1
//	payments complete     finish requests whose clients have gone, for ever
//
// ../payments/drive.py runs it.  PROVIDER is the URL of the payment provider; LEASE
// and WAIT are intervals.

// >>> claim
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

type Request struct {
	Tenant string // who is logged in, never what the client says
	Key    string
	Method string
	Path   string
	Body   []byte
}

type Answer struct {
	Status  int
	Headers map[string]string
	Body    []byte
}

func answer(status int, document any, headers ...string) Answer {
	body, _ := json.Marshal(document)
	a := Answer{status, map[string]string{"Content-Type": "application/json"}, body}
	for i := 0; i < len(headers); i += 2 {
		a.Headers[headers[i]] = headers[i+1]
	}
	return a
}

func problem(status int, what string, headers ...string) Answer {
	return answer(status, map[string]string{"error": what}, headers...)
}

type Claim struct {
	Result        string
	Token         *int64
	RecoveryPoint *string
	State         *State
	Status        *int
	Headers       map[string]string
	Body          []byte
	RetryAfter    *int
}

const claimSQL = `
	SELECT c.result, c.token, c.recovery_point, c.state, c.status, c.headers, c.body,
	       ceil(extract(epoch FROM c.retry_after))::int AS retry_after
	FROM jsonb_build_object('method', $1::text, 'path', $2::text, 'body', $3::jsonb) AS r (request),
	     idempotency.claim_request($4, $5, idempotency.canonical_hash(r.request), 'payments',
	         lease => $6::interval, wait => $7::interval,
	         request => CASE WHEN $6::interval IS NOT NULL THEN r.request END) AS c`

// claimRequest claims without a lease if it is nil.
func claimRequest(ctx context.Context, tx pgx.Tx, r Request, lease *string, wait string) (Claim, error) {
	rows, err := tx.Query(ctx, claimSQL, r.Method, r.Path, r.Body, r.Key, r.Tenant, lease, wait)
	if err != nil {
		return Claim{}, err
	}
	return pgx.CollectOneRow(rows, pgx.RowToStructByName[Claim])
}

func completeRequest(ctx context.Context, tx pgx.Tx, r Request, a Answer, token *int64) error {
	_, err := tx.Exec(ctx,
		"SELECT idempotency.complete_request($1, $2, $3, $4, $5, consumer => 'payments', token => $6)",
		r.Key, r.Tenant, a.Status, a.Headers, a.Body, token)
	return err
}

// answerToRepeat is what a request gets that is not executed now.
func answerToRepeat(c Claim) Answer {
	switch {
	case c.Result == "replay" && c.Status != nil:
		c.Headers["Idempotent-Replayed"] = "true"
		return Answer{*c.Status, c.Headers, c.Body}
	case c.Result == "in_progress":
		after := 1
		if c.RetryAfter != nil && *c.RetryAfter > 1 {
			after = *c.RetryAfter
		}
		return problem(409, "this request is being executed", "Retry-After", strconv.Itoa(after))
	case c.Result == "mismatch":
		return problem(422, "this key was used for another request")
	default: // dead, or discarded by an operator
		return problem(500, "this request has failed too often, and needs attention")
	}
}

// <<<

// >>> transfer
type Transfer struct {
	From   string `json:"from"`
	To     string `json:"to"`
	Amount int64  `json:"amount"`
}

// transfer moves money between two accounts of the tenant: a handler in one transaction.
func transfer(ctx context.Context, pool *pgxpool.Pool, r Request) (final Answer, err error) {
	var order Transfer
	if err := json.Unmarshal(r.Body, &order); err != nil {
		return final, err
	}
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		claim, err := claimRequest(ctx, tx, r, nil, setting("WAIT", "2 s"))
		if err != nil {
			return err
		}
		if claim.Result != "started" {
			final = answerToRepeat(claim)
			return nil
		}
		// a savepoint: what fails in here is undone, the claim is not
		err = pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
			final, err = moveMoney(ctx, tx, r.Tenant, order)
			return err
		})
		switch {
		case err == nil:
		case sqlstate(err) == "23514": // a check
			final = problem(402, "insufficient funds")
		case sqlstate(err) == "23503": // a foreign key
			final = problem(404, "no such account")
		case mayRetry(err):
			return err // undo everything, store nothing
		default:
			log.Print("transfer failed: ", err)
			final = problem(500, "internal error")
		}
		return completeRequest(ctx, tx, r, final, nil)
	})
	return final, err // without an error it is committed
}

func moveMoney(ctx context.Context, tx pgx.Tx, tenant string, order Transfer) (Answer, error) {
	var id int64
	err := tx.QueryRow(ctx,
		"INSERT INTO transfers (tenant, source, target, amount) VALUES ($1, $2, $3, $4) RETURNING id",
		tenant, order.From, order.To, order.Amount).Scan(&id)
	if err != nil {
		return Answer{}, err
	}
	// in one order, so that two transfers cannot wait for each other
	names, amounts := []string{order.From, order.To}, []int64{-order.Amount, order.Amount}
	if order.To < order.From {
		names, amounts = []string{order.To, order.From}, []int64{order.Amount, -order.Amount}
	}
	for i, name := range names {
		_, err := tx.Exec(ctx, "UPDATE accounts SET balance = balance + $1 WHERE tenant = $2 AND name = $3",
			amounts[i], tenant, name)
		if err != nil {
			return Answer{}, err
		}
	}
	return answer(201, map[string]int64{"transfer": id}, "Location", fmt.Sprint("/transfers/", id)), nil
}

// <<<

// >>> payment
type Payment struct {
	Card   string `json:"card"`
	Amount int64  `json:"amount"`
}

// State is what the next attempt needs to know.
type State struct {
	Payment string  `json:"payment"`
	Charge  *string `json:"charge"` // nil: the card was declined
}

// pay charges a card: a handler with phases, because the payment provider is not in this database.
func pay(ctx context.Context, pool *pgxpool.Pool, r Request) (final Answer, err error) {
	var order Payment
	if err := json.Unmarshal(r.Body, &order); err != nil {
		return final, err
	}
	var claim Claim
	lease := setting("LEASE", "30 s") // longer than a call to the provider may take
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		claim, err = claimRequest(ctx, tx, r, &lease, "0")
		return err
	})
	if err != nil {
		return final, err
	}
	if claim.Result != "started" {
		return answerToRepeat(claim), nil
	}
	point, state, token := "", claim.State, claim.Token
	if claim.RecoveryPoint != nil {
		point = *claim.RecoveryPoint
	}

	if point == "" {
		state = &State{Payment: newID()}
		err := phase(ctx, pool, r, token, lease, "recorded", state,
			"INSERT INTO payments (id, tenant, amount) VALUES ($1, $2, $3)", state.Payment, r.Tenant, order.Amount)
		if err != nil {
			return final, err
		}
		point = "recorded"
	}
	if point == "recorded" {
		if state.Charge, err = chargeCard(ctx, state.Payment, order); err != nil {
			return tryLater(ctx, pool, r, token, err)
		}
		err := phase(ctx, pool, r, token, lease, "charged", state,
			"UPDATE payments SET charge = $1 WHERE id = $2", state.Charge, state.Payment)
		if err != nil {
			return final, err
		}
	}

	status := "paid"
	final = answer(201, map[string]*string{"payment": &state.Payment, "charge": state.Charge},
		"Location", "/payments/"+state.Payment)
	if state.Charge == nil {
		status, final = "declined", problem(402, "the card was declined")
	}
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "UPDATE payments SET status = $1 WHERE id = $2", status, state.Payment)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "SELECT idempotency.outbox_enqueue('payment', $1::text, 'PaymentEnded', $2::jsonb)",
			state.Payment, map[string]any{"status": status, "amount": order.Amount})
		if err != nil {
			return err
		}
		return completeRequest(ctx, tx, r, final, token)
	})
	return final, err
}

// phase commits the row of a phase together with its recovery point.
func phase(ctx context.Context, pool *pgxpool.Pool, r Request, token *int64, lease, point string, state *State,
	statement string, arguments ...any) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx,
			"SELECT idempotency.advance_request($1, $2, $3, $4, 'payments', $5, lease => $6::interval)",
			r.Key, r.Tenant, token, point, state, lease)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, statement, arguments...)
		return err
	})
}

// chargeCard returns the provider's id of the charge, or nil if the card was declined.  The
// payment's id is the provider's key.
func chargeCard(ctx context.Context, payment string, order Payment) (*string, error) {
	body, _ := json.Marshal(order)
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	call, err := http.NewRequestWithContext(ctx, "POST", os.Getenv("PROVIDER"), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	call.Header.Set("Content-Type", "application/json")
	call.Header.Set("Idempotency-Key", payment)
	reply, err := http.DefaultClient.Do(call)
	if err != nil {
		return nil, err
	}
	defer reply.Body.Close()
	switch reply.StatusCode {
	case 200:
		var charge struct{ Charge *string }
		err := json.NewDecoder(reply.Body).Decode(&charge)
		if err == nil && charge.Charge == nil {
			err = errors.New("no charge in the answer")
		}
		return charge.Charge, err
	case 402:
		return nil, nil
	default:
		return nil, errors.New(reply.Status)
	}
}

// tryLater: neither charged nor declined, or nobody knows; a repeat asks the provider again.
func tryLater(ctx context.Context, pool *pgxpool.Pool, r Request, token *int64, failure error) (Answer, error) {
	_, err := pool.Exec(ctx, "SELECT idempotency.fail_request($1, $2, $3, 'payments', token => $4)",
		r.Key, r.Tenant, failure.Error(), token)
	return problem(503, "the payment provider does not answer", "Retry-After", "1"), err
}

func newID() string {
	b := make([]byte, 16)
	if _, err := rand.Read(b); err != nil {
		panic(err)
	}
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// <<<

// >>> http
type handler func(context.Context, *pgxpool.Pool, Request) (Answer, error)

var routes = map[string]handler{"/transfers": transfer, "/payments": pay}
var keyPattern = regexp.MustCompile(`^[!-~]{1,255}$`)

// respond gives the answer to an HTTP request.
func respond(ctx context.Context, pool *pgxpool.Pool, authorization string, r Request) Answer {
	handle, known := routes[r.Path]
	switch {
	case !known || r.Method != "POST":
		return problem(404, "not found")
	case !keyPattern.MatchString(r.Key):
		return problem(400, "Idempotency-Key must have 1 to 255 visible characters of ASCII")
	case !isValid(r):
		return problem(400, "the body is not valid")
	}
	tenant, err := tenantOf(ctx, pool, strings.TrimPrefix(authorization, "Bearer "))
	if err == nil && tenant == "" {
		return problem(401, "unauthorized", "WWW-Authenticate", "Bearer")
	}
	var final Answer
	if err == nil {
		r.Tenant = tenant
		final, err = handle(ctx, pool, r)
	}
	switch {
	case err == nil:
		return final
	case sqlstate(err) == "ID007": // this execution was too slow, another one has gone on
		return problem(409, "this request is being executed", "Retry-After", "1")
	case strings.HasPrefix(sqlstate(err), "22"): // JSON that jsonb does not take, such as "\u0000"
		return problem(400, "the body is not valid")
	case mayRetry(err):
		log.Print("not now: ", err)
		return problem(503, "try again", "Retry-After", "1")
	default:
		log.Print(r.Path, " failed: ", err)
		return problem(500, "internal error")
	}
}

func sqlstate(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

// mayRetry: connection lost, 40001, deadlock, no connection free ...
func mayRetry(err error) bool {
	code := sqlstate(err)
	return code == "" || code == "55P03" || strings.Contains(" 08 25 40 53 57 ", " "+code[:2]+" ")
}

// isValid: a request that is not valid never begins: it stores nothing, and its key stays free.
func isValid(r Request) bool {
	var order struct {
		From, To, Card *string
		Amount         int64
	}
	if json.Unmarshal(r.Body, &order) != nil || order.Amount <= 0 || order.Amount >= 1<<53 {
		return false
	}
	if r.Path == "/transfers" {
		return order.From != nil && order.To != nil
	}
	return order.Card != nil
}

// tenantOf stands for your authentication.
func tenantOf(ctx context.Context, pool *pgxpool.Pool, token string) (tenant string, err error) {
	hash := sha256.Sum256([]byte(token))
	err = pool.QueryRow(ctx, "SELECT name FROM tenants WHERE token_hash = $1", hash[:]).Scan(&tenant)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", nil
	}
	return tenant, err
}

func serve(pool *pgxpool.Pool, w http.ResponseWriter, q *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, q.Body, 100_000))
	if err != nil {
		http.Error(w, "the body is too long, or did not arrive", 400)
		return
	}
	// not the context of the request: what was begun goes on when the client hangs up
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	a := respond(ctx, pool, q.Header.Get("Authorization"),
		Request{Key: q.Header.Get("Idempotency-Key"), Method: q.Method, Path: q.URL.Path, Body: body})
	for name, value := range a.Headers {
		w.Header().Set(name, value)
	}
	w.WriteHeader(a.Status)
	_, _ = w.Write(a.Body)
}

// <<<

// >>> complete
const dueSQL = "SELECT scope, key, request FROM idempotency.requests WHERE consumer = 'payments' AND due LIMIT 100"

// completeAbandoned does what the repeats would do of clients that sent none.  Any number of
// processes may run it.
func completeAbandoned(ctx context.Context, pool *pgxpool.Pool) error {
	type due struct {
		Scope, Key string
		Request    struct {
			Method, Path string
			Body         json.RawMessage
		}
	}
	rows, err := pool.Query(ctx, dueSQL)
	if err != nil {
		return err
	}
	abandoned, err := pgx.CollectRows(rows, pgx.RowToStructByName[due])
	if err != nil {
		return err
	}
	for _, d := range abandoned {
		r := Request{d.Scope, d.Key, d.Request.Method, d.Request.Path, d.Request.Body}
		a, err := routes[r.Path](ctx, pool, r)
		log.Print("completed: ", a.Status, " ", err)
	}
	return nil
}

// <<<

// >>> main
func main() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "")
	if err != nil {
		log.Fatal(err)
	}
	if os.Args[1] == "complete" {
		for ; ; time.Sleep(time.Second) {
			if err := completeAbandoned(ctx, pool); err != nil {
				log.Print(err)
			}
		}
	}
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Args[1], http.HandlerFunc(
		func(w http.ResponseWriter, q *http.Request) { serve(pool, w, q) })))
}

func setting(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}

// <<<
