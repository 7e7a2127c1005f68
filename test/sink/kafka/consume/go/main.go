// Consume from Kafka into PostgreSQL, each record once.  ../../consume.py kills it.
//
// The lines between the marks are those of doc/howto/kafka-consume.md.

// >>> program
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"math/rand"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	maxBatch = 50
	maxTries = 20

	draw   = `SELECT nextval('reader_generation')`
	resume = `SELECT result::text, next_offset FROM idempotency.resume_offset($1, $2, $3, generation => $4, wait => '30 s')`
	claim  = `
		SELECT result::text, coalesce(new_from, 0)
		FROM idempotency.claim_offset($1, $2, $3, first_offset => $4, next_offset => $5, generation => $6, wait => '1 s')`
	charge = `
		INSERT INTO accounts
		VALUES (convert_from($1::bytea, 'UTF8'), (convert_from($2::bytea, 'UTF8')::jsonb->>'total')::numeric)
		ON CONFLICT (customer) DO UPDATE SET owed = accounts.owed + EXCLUDED.owed`
	enqueue = `
		SELECT idempotency.outbox_enqueue('account', convert_from($1::bytea, 'UTF8'), 'AccountCharged',
			jsonb_build_object('cause', format('%s/%s/%s', $2::text, $3::int, $4::bigint)))`
	reject = `
		INSERT INTO rejected_messages (consumer_group, topic, kafka_partition, kafka_offset, key, value, sqlstate, error)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`
)

var (
	group   = os.Getenv("KAFKA_GROUP")
	errBusy = errors.New("another transaction has the partition right now")
)

type partition struct {
	topic  string
	number int32
}

// billing has a connection, its generation as a reader and, for each partition, the
// offset behind what it has claimed.  A rebalance runs beside the main loop; the mutex
// keeps the two apart.
type billing struct {
	sync.Mutex
	conn       *pgx.Conn
	generation int64
	position   map[partition]int64
}

// assigned goes on where the database says; whoever read the partitions before is
// fenced from now on.
func (b *billing) assigned(ctx context.Context, offsets map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
	b.Lock()
	defer b.Unlock()
	if err := b.conn.QueryRow(ctx, draw).Scan(&b.generation); err != nil {
		return nil, err
	}
	for topic, numbers := range offsets {
		for number := range numbers {
			var result string
			var next *int64
			if err := b.conn.QueryRow(ctx, resume, group, topic, number, b.generation).Scan(&result, &next); err != nil {
				return nil, err
			}
			if result != "claimed" {
				return nil, fmt.Errorf("%s/%d cannot be resumed: %s", topic, number, result)
			}
			b.position[partition{topic, number}] = 0
			numbers[number] = kgo.NewOffset().AtStart()
			if next != nil {
				b.position[partition{topic, number}] = *next
				numbers[number] = kgo.NewOffset().At(*next)
			}
		}
	}
	return offsets, nil
}

// handle makes the effect of one message, or its row in rejected_messages.
func handle(ctx context.Context, tx pgx.Tx, m *kgo.Record) error {
	err := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { // a savepoint
		if _, err := tx.Exec(ctx, charge, m.Key, m.Value); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, enqueue, m.Key, m.Topic, m.Partition, m.Offset)
		return err
	})
	if state := sqlstate(err); strings.HasPrefix(state, "22") || strings.HasPrefix(state, "23") { // this message will never do
		_, err = tx.Exec(ctx, reject, group, m.Topic, m.Partition, m.Offset, m.Key, m.Value, state, err.Error())
	}
	return err
}

// handleBatch claims what was polled and makes its effects, in one transaction.
func (b *billing) handleBatch(ctx context.Context, messages []*kgo.Record) error {
	ends, newFrom := map[partition]int64{}, map[partition]int64{}
	for _, m := range messages {
		ends[partition{m.Topic, m.Partition}] = m.Offset + 1
	}
	err := pgx.BeginFunc(ctx, b.conn, func(tx pgx.Tx) error {
		for p, end := range ends {
			var result string
			var from int64
			err := tx.QueryRow(ctx, claim, group, p.topic, p.number, b.position[p], end, b.generation).Scan(&result, &from)
			if err != nil {
				return err
			}
			if result == "busy" {
				return errBusy
			}
			if result != "claimed" {
				return fmt.Errorf("%s/%d, offsets %d to %d: %s", p.topic, p.number, b.position[p], end, result)
			}
			newFrom[p] = from
		}
		for _, m := range messages {
			if m.Offset < newFrom[partition{m.Topic, m.Partition}] {
				continue
			}
			if err := handle(ctx, tx, m); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		for p, end := range ends {
			b.position[p] = end
		}
	}
	return err
}

func (b *billing) handleWithRetries(ctx context.Context, messages []*kgo.Record) error {
	b.Lock()
	defer b.Unlock()
	for tries := 1; ; tries++ {
		err := b.handleBatch(ctx, messages)
		if tries == maxTries || !errors.Is(err, errBusy) && !strings.HasPrefix(sqlstate(err), "40") {
			return err
		}
		log.Print("again: ", err)
		time.Sleep(time.Duration(rand.Intn(200)) * time.Millisecond)
	}
}

func sqlstate(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

func run() error {
	ctx := context.Background()
	stop, cancel := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	conn, err := pgx.Connect(ctx, "")
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, "SET idle_in_transaction_session_timeout = '10s'"); err != nil {
		return err
	}
	b := &billing{conn: conn, position: map[partition]int64{}}
	session := 45 * time.Second
	if ms, err := strconv.Atoi(os.Getenv("KAFKA_SESSION_TIMEOUT")); err == nil {
		session = time.Duration(ms) * time.Millisecond
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(os.Getenv("KAFKA_BROKERS"), ",")...),
		kgo.ConsumerGroup(group), kgo.ConsumeTopics(os.Getenv("KAFKA_TOPIC")),
		kgo.SessionTimeout(session), kgo.HeartbeatInterval(session/10),
		kgo.DisableAutoCommit(), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.BlockRebalanceOnPoll(), kgo.AdjustFetchOffsetsFn(b.assigned))
	if err != nil {
		return err
	}
	defer client.CloseAllowingRebalance()
	for {
		fetches := client.PollRecords(stop, maxBatch)
		if stop.Err() != nil {
			return nil
		}
		if err := fetches.Err(); err != nil {
			return err
		}
		if fetches.NumRecords() > 0 {
			if err := b.handleWithRetries(ctx, fetches.Records()); err != nil {
				return err
			}
		}
		client.AllowRebalance()
	}
}

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

// <<<
