package paths

import (
	"reflect"
	"sync"
	"time"
	"unsafe"

	kcpgo "github.com/xtaci/kcp-go/v5"
)

// task is what kcp-go's scheduler is given.
type task struct {
	execute func()
	at      time.Time
}

// inVirtualTime runs kcp-go's sessions until stop is called. Its own scheduler never ends
// to wait for a time that has come and is not over: in virtual time that is for ever. So
// that is stopped, and what it is given runs by timers.
func inVirtualTime() (stop func()) {
	clock := kcpgo.SystemTimedSched
	given := kcpgo.NewTimedSched(1)
	given.Close()
	kcpgo.SystemTimedSched = given
	field := func(name string) unsafe.Pointer {
		return reflect.ValueOf(given).Elem().FieldByName(name).Addr().UnsafePointer()
	}
	lock, tasks, more := (*sync.Mutex)(field("prependLock")), (*[]task)(field("prependTasks")), *(*chan struct{})(field("chPrependNotify"))
	time.Sleep(time.Nanosecond) // the goroutines of given end
	end := make(chan struct{})
	go func() {
		for {
			select {
			case <-more:
			case <-end:
				return
			}
			lock.Lock()
			for _, t := range *tasks {
				time.AfterFunc(time.Until(t.at), t.execute)
			}
			*tasks = nil
			lock.Unlock()
		}
	}()
	return func() {
		time.Sleep(time.Second) // sessions that are closed end
		close(end)
		kcpgo.SystemTimedSched = clock
	}
}
