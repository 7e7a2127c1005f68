// Command produce_stream_go is the fastest producer of RabbitMQ's official Go client for
// streams: it sends events from memory, as messages of the form that the rabbitmq sink
// makes.
//
//	produce_stream_go ADDRESS:PORT STREAM EVENTS PAYLOAD
//
// What is printed: ../produce.h.  By BatchSend, a thousand messages at once, as one entry
// that is not compressed (sub-entry batching).  All are confirmed, ten thousand are in
// flight.  The client's own buffers of the socket have 8 kB, with which it sends 5,000
// messages a second; so they are set to a megabyte.
package main

import (
	"fmt"
	"log"
	"net"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/rabbitmq/rabbitmq-stream-go-client/pkg/amqp"
	"github.com/rabbitmq/rabbitmq-stream-go-client/pkg/message"
	"github.com/rabbitmq/rabbitmq-stream-go-client/pkg/stream"
)

const (
	keys         = 10000
	perEntry     = 1000
	inFlight     = 10 // entries
	socketBuffer = 1 << 20
)

func check(what string, err error) {
	if err != nil {
		log.Fatalf("producer: %s: %v", what, err)
	}
}

// CPU seconds of this process.
func cpu() float64 {
	var u syscall.Rusage
	check("getrusage", syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return float64(u.Utime.Sec+u.Stime.Sec) + float64(u.Utime.Usec+u.Stime.Usec)/1e6
}

func connect(address, target string) *stream.Producer {
	host, service, err := net.SplitHostPort(address)
	check("address", err)
	port, err := strconv.Atoi(service)
	check("address", err)
	env, err := stream.NewEnvironment(stream.NewEnvironmentOptions().SetHost(host).SetPort(port).
		SetUser("admin").SetPassword("admin").SetAddressResolver(stream.AddressResolver{Host: host, Port: port}).
		SetWriteBuffer(socketBuffer).SetReadBuffer(socketBuffer))
	check("connect", err)
	producer, err := env.NewProducer(target, stream.NewProducerOptions().
		SetSubEntrySize(perEntry).SetCompression(stream.Compression{}.None()))
	check(target, err)
	return producer
}

func makeMessage(n int, payload []byte, created time.Time) message.StreamMessage {
	m := amqp.NewMessage(payload)
	m.Properties = &amqp.MessageProperties{
		MessageID:    fmt.Sprintf("00000000-0000-4000-8000-%012d", n),
		ContentType:  "application/json",
		CreationTime: created,
	}
	m.ApplicationProperties = map[string]interface{}{
		"event_type":     "OrderCreated",
		"aggregate_type": "order",
		"aggregate_id":   strconv.Itoa(n % keys),
	}
	return m
}

// What was measured of the confirms.
type result struct {
	tenth, end time.Time
	byTenth    int // events that were confirmed at tenth
}

// Count confirms, and give back the place of each entry that is confirmed.
func count(confirms stream.ChannelPublishConfirm, places chan struct{}, events int, done chan result) {
	var r result
	given := 0
	for confirmed := 0; confirmed < events; {
		for _, s := range <-confirms {
			if !s.IsConfirmed() {
				log.Fatalf("producer: a message is not confirmed: %v", s.GetError())
			}
			confirmed++
		}
		if r.tenth.IsZero() && confirmed >= events/10 {
			r.tenth = time.Now()
			r.byTenth = confirmed
		}
		for ; given < confirmed/perEntry; given++ {
			<-places
		}
	}
	r.end = time.Now()
	done <- r
}

func main() {
	if len(os.Args) != 5 {
		log.Fatal("usage: produce_stream_go ADDRESS:PORT STREAM EVENTS PAYLOAD")
	}
	events, err := strconv.Atoi(os.Args[3])
	check("events", err)
	payload := []byte(os.Args[4])
	producer := connect(os.Args[1], os.Args[2])
	places := make(chan struct{}, inFlight)
	done := make(chan result)
	created := time.UnixMilli(1796000000000)
	before := cpu()

	go count(producer.NotifyPublishConfirmation(), places, events, done)
	for n := 0; n < events; {
		entry := make([]message.StreamMessage, 0, perEntry)
		for ; n < events && len(entry) < perEntry; n++ {
			entry = append(entry, makeMessage(n, payload, created))
		}
		places <- struct{}{}
		check("send", producer.BatchSend(entry))
	}
	r := <-done
	fmt.Printf("%.1f\t%.6f\n", float64(events-r.byTenth)/r.end.Sub(r.tenth).Seconds(), cpu()-before)
}
