// Command pubsub_server runs Google's own test server of Pub/Sub (pstest) for the tests.
//
// It prints "ready" when it listens. A line on its standard input is a JSON array of faults, which
// replaces those before; "ok" answers it. With -tls-port it also accepts TLS and forwards what it
// receives.
//
// pstest takes any request. The limits below are those of the service, which the tests rely on.
package main

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"math/rand"
	"net"
	"os"
	"sync"
	"time"

	pb "cloud.google.com/go/pubsub/apiv1/pubsubpb"
	"cloud.google.com/go/pubsub/pstest"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

const (
	maxMessages  = 1000
	maxKeyBytes  = 1024
	maxNameBytes = 256
	maxAttribute = 1024
)

// A fault fails calls of a method with a code.
type fault struct {
	Method       string     `json:"method"`
	Code         codes.Code `json:"code"`
	Message      string     `json:"message"`
	Count        int        `json:"count"`          // Calls that fail; 0: all.
	Share        float64    `json:"share"`          // Of the calls; 0: all.
	Contains     string     `json:"contains"`       // Only requests with a message that contains it.
	RetryDelayMs int        `json:"retry_delay_ms"` // A RetryInfo in the error; 0: none.
}

// server decides which calls fail. pstest calls it with its own lock held.
type server struct {
	mu     sync.Mutex
	faults []*fault
	rng    *rand.Rand
}

type reactor struct {
	server *server
	method string
}

func (r *reactor) React(request interface{}) (bool, interface{}, error) {
	if err := r.server.failure(r.method, request); err != nil {
		return true, nil, err
	}
	if publish, ok := request.(*pb.PublishRequest); ok {
		if err := violation(publish.Messages); err != nil {
			return true, nil, err
		}
	}
	return false, nil, nil
}

// failure returns the error of the first fault that a call meets.
func (s *server) failure(method string, request interface{}) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for at, each := range s.faults {
		if each.Method != method || !each.concerns(request) {
			continue
		}
		if each.Share > 0 && s.rng.Float64() >= each.Share {
			continue
		}
		if each.Count == 1 {
			s.faults = append(s.faults[:at:at], s.faults[at+1:]...)
		} else if each.Count > 1 {
			each.Count--
		}
		return each.error()
	}
	return nil
}

func (f *fault) concerns(request interface{}) bool {
	if f.Contains == "" {
		return true
	}
	publish, ok := request.(*pb.PublishRequest)
	if !ok {
		return false
	}
	for _, message := range publish.Messages {
		if bytes.Contains(message.Data, []byte(f.Contains)) {
			return true
		}
	}
	return false
}

func (f *fault) error() error {
	found := status.New(f.Code, f.Message)
	if f.RetryDelayMs > 0 {
		delay := durationpb.New(time.Duration(f.RetryDelayMs) * time.Millisecond)
		detailed, err := found.WithDetails(&errdetails.RetryInfo{RetryDelay: delay})
		if err != nil {
			log.Fatal(err)
		}
		found = detailed
	}
	return found.Err()
}

// violation says what the service would refuse, https://cloud.google.com/pubsub/quotas.
func violation(messages []*pb.PubsubMessage) error {
	if len(messages) == 0 || len(messages) > maxMessages {
		return status.Errorf(codes.InvalidArgument, "%d messages", len(messages))
	}
	for _, each := range messages {
		if each.OrderingKey != messages[0].OrderingKey {
			return status.Error(codes.FailedPrecondition, "messages have different ordering keys")
		}
		if len(each.OrderingKey) > maxKeyBytes {
			return status.Error(codes.InvalidArgument, "an ordering key is too long")
		}
		if len(each.Data) == 0 && len(each.Attributes) == 0 {
			return status.Error(codes.InvalidArgument, "a message is empty")
		}
		for name, value := range each.Attributes {
			if name == "" || len(name) > maxNameBytes || len(value) > maxAttribute {
				return status.Errorf(codes.InvalidArgument, "the attribute %q is invalid", name)
			}
		}
	}
	return nil
}

// obey reads faults until the standard input ends.
func (s *server) obey() {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var faults []*fault
		if err := json.Unmarshal(lines.Bytes(), &faults); err != nil {
			log.Fatal(err)
		}
		s.mu.Lock()
		s.faults = faults
		s.mu.Unlock()
		fmt.Println("ok")
	}
}

// forwardTLS decrypts connections and passes their bytes on.
func forwardTLS(port int, certificate, key, to string) {
	pair, err := tls.LoadX509KeyPair(certificate, key)
	if err != nil {
		log.Fatal(err)
	}
	config := &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2"}}
	listener, err := tls.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port), config)
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				log.Fatal(err)
			}
			go forward(client, to)
		}
	}()
}

func forward(client net.Conn, to string) {
	defer client.Close()
	upstream, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer upstream.Close()
	go func() {
		io.Copy(upstream, client)
		upstream.Close()
	}()
	io.Copy(client, upstream)
}

func main() {
	port := flag.Int("port", 0, "port of the server on loopback")
	seed := flag.Int64("seed", 0, "seed of faults with a share")
	tlsPort := flag.Int("tls-port", 0, "port that accepts TLS")
	certificate := flag.String("certificate", "", "file of the certificate")
	key := flag.String("key", "", "file of its key")
	flag.Parse()
	faulty := &server{rng: rand.New(rand.NewSource(*seed))}
	var options []pstest.ServerReactorOption
	for _, method := range []string{"Publish", "GetTopic", "ListTopics"} {
		options = append(options, pstest.ServerReactorOption{
			FuncName: method, Reactor: &reactor{server: faulty, method: method},
		})
	}
	running := pstest.NewServerWithPort(*port, options...)
	if *tlsPort != 0 {
		forwardTLS(*tlsPort, *certificate, *key, running.Addr)
	}
	fmt.Println("ready")
	faulty.obey()
}
