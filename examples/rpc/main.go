// Command rpc offers a service of net/rpc over KCP: a store of named values,
// which many goroutines call over one session at the same time.
//
//	go run ./examples/rpc
package main

import (
	"fmt"
	"log"
	"net"
	"net/rpc"
	"sync"

	"github.com/arqnet/kcp"
)

// Store is the service.
type Store struct {
	mu     sync.Mutex
	values map[string][]byte
}

// Item is a value and its name.
type Item struct {
	Name  string
	Value []byte
}

// Put keeps an item and returns how many there are.
func (s *Store) Put(item Item, count *int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.values[item.Name] = item.Value
	*count = len(s.values)
	return nil
}

// Get returns the value of a name.
func (s *Store) Get(name string, value *[]byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.values[name]
	if !ok {
		return fmt.Errorf("there is no %q", name)
	}
	*value = v
	return nil
}

// serve serves one store to all sessions, until l is closed.
func serve(l net.Listener) error {
	server := rpc.NewServer()
	if err := server.Register(&Store{values: make(map[string][]byte)}); err != nil {
		return err
	}
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go server.ServeConn(conn) // until the client closes it
	}
}

func main() {
	l, err := kcp.Listen("udp", "127.0.0.1:0", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	go serve(l)

	conn, err := kcp.Dial("udp", l.Addr().String(), nil)
	if err != nil {
		log.Fatal(err)
	}
	client := rpc.NewClient(conn)
	defer client.Close()
	var calls sync.WaitGroup
	for i := range 10 {
		calls.Go(func() {
			var count int
			if err := client.Call("Store.Put", Item{fmt.Sprint("number ", i), []byte{byte(i)}}, &count); err != nil {
				log.Fatal(err)
			}
		})
	}
	calls.Wait()
	var value []byte
	if err := client.Call("Store.Get", "number 7", &value); err != nil {
		log.Fatal(err)
	}
	fmt.Println("number 7 is", value)
	err = client.Call("Store.Get", "number 12", &value) // with a text of the server's
	fmt.Printf("and another: %q\n", err)
}
