// Package netsim is a bad network on demand: seeded, scripted, and in virtual
// time if wanted, to try what is built on UDP. It knows nothing of KCP, or of
// any other protocol, and depends on the standard library alone.
//
// There are three layers, which share one model of a link:
//
//   - [Link] is the model of one direction of a link: a pure state machine that
//     is driven by calls. Packets and times go in, packets and times come out.
//     It suits simulations that have a clock of their own.
//   - [Network] joins virtual sockets ([PacketConn], a net.PacketConn) by links,
//     on the clock of the time package. It suits tests of programs.
//   - [Relay] puts two links between real UDP sockets, in real time. It suits
//     demonstrations, and programs that cannot be given a net.PacketConn. The
//     command "kcp relay" is one.
//
// A link delays, jitters, loses at random and in bursts, duplicates, reorders,
// corrupts, limits the rate, queues, swallows what is too big,
// and fails: see [LinkConfig]. The two directions between two hosts are two links
// with settings of their own. A [Script] changes a link over time; [Network.At]
// does anything at a time, such as [Network.Cut] and [Network.Heal] to part
// hosts, or [PacketConn.Rebind] to move one, as a NAT does. [Profiles] are links
// that others have measured.
//
// # Testing an application in virtual time
//
// Inside a bubble of testing/synctest the clock stands still while anything
// runs, and jumps when nothing does: an hour of bad network takes as long as the
// work in it. With kcp.Config.Repetition it takes the same course each time: see
// Determinism. This is a whole test of an echo service over KCP, at 10 % loss and
// with an outage of three seconds:
//
//	func TestEcho(t *testing.T) {
//		synctest.Test(t, func(t *testing.T) {
//			network := netsim.NewNetwork(1, netsim.LinkConfig{Delay: 40 * time.Millisecond, Loss: 0.1})
//			network.Play("", "", netsim.Outage(200*time.Millisecond, 3*time.Second))
//			config := &kcp.Config{Repetition: netsim.NewRepetition(1)}
//			pc, _ := network.Listen("10.0.0.1:4000")
//			server, _ := kcp.NewEndpoint(pc, config)
//			defer server.Close()
//			go serve(server) // the application
//			pc, _ = network.Listen("10.0.0.2:0")
//			client, _ := kcp.NewEndpoint(pc, config)
//			defer client.Close()
//			converse(t, client, server.LocalAddr()) // the test
//		})
//	}
//
// Both the network and what uses it must be made inside the bubble: a network from
// outside panics. A test that fails under one seed of many should print it, so that it
// can be given again.
//
// Real sockets do not belong in a bubble, be they of the net package, of kcp.Dial and
// kcp.Listen, or of a Relay, which is refused. Whoever reads one does not block durably,
// so the clock stands still while it is open. What needs no time works: kcp.Dial on
// loopback succeeds in 0 s. What needs some never ends: a Sleep, a Dial without an
// answer, a Close that lingers, or a socket that outlives its session. The test hangs
// until the time-out of "go test".
//
// An endpoint that is not closed when the function of the test returns is a panic of
// synctest: "deadlock: main bubble goroutine has exited".
//
// To end a server as a process that is killed, so that nobody is told, close the
// PacketConn before the endpoint: what the endpoint then says to its peers is not sent.
// A new one can listen at the same address at once.
//
// # Determinism
//
// The same seed and the same calls at the same times have the same outcome, on
// every platform; golden transcripts in testdata hold the package to that. The
// luck of a link comes from the seed and the addresses of its two ends, not from
// the order in which links are first used, and a setting that is changed leaves
// the luck of the others alone: with Loss raised from 0.1 to 0.2, those packets
// that were lost are lost again, and others besides.
//
// In a bubble, goroutines that are woken at the same instant run in no order that
// is known, and on several processors at once. Packets that several of them send
// over one link, or to one socket, at the same instant change places. Protocols
// draw at random besides, and so does select among channels that are ready. Endpoints
// of package kcp need kcp.Config.Repetition for a run that repeats, the same one for all
// of them: then nothing of theirs draws from elsewhere, except for crypto/tls, or runs at
// the same instant as anything else of theirs. What the program does by itself remains
// for the program:
//
//   - Of goroutines that start at the same instant, or whose own timers end then,
//     each should sleep for a microsecond more than the one before.
//   - A goroutine that waits for a channel, such as Conn.Done or Conn.WriteReady, or
//     for another goroutine, or that has started one, should sleep for a microsecond
//     before it goes on: then whatever runs at that instant is over.
//   - Only one goroutine at a time should read a session or stream, and one write it.
//   - What it sends should not depend on chance, such as the order of a map.
//
// A nanosecond is too short: the endpoints' own goroutines take turns at the odd
// nanoseconds, and a timer that ends with them runs before or after them, by chance.
//
// A program without such sleeps may repeat with "go test -cpu 1", where goroutines that
// are woken at the same instant seldom change places. Timers that end at the same
// instant still run in random order.
//
// With kcp.Config.TLS, crypto/tls draws from crypto/rand: no two runs have the same
// packets, and those with ECDSA certificates differ in size too. The packets repeat if
// the test calls cryptotest.SetGlobalRandom of package testing/cryptotest before
// synctest.Test, in a module of Go 1.26 or later. In an older one it also needs
// GODEBUG=cryptocustomrand=0. Bubbles begin on 1 January 2000: certificates must be
// valid then, or tls.Config.Time must say another time.
//
// A Relay lives in real time and does not repeat itself.
//
// # What it is not
//
// It does not model routers with several flows in separate queues, ICMP, IP
// fragments, checksums (a corrupted packet reaches its receiver), or what a
// kernel costs. It simulates no hosts: processing takes no virtual time. Figures
// that were measured on it say how a protocol copes with the settings of the
// links, no more.
package netsim
