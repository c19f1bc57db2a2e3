// Package cluster is a cluster of nodes that find each other, notice when one of them
// dies, and send each other messages. All of it runs in KCP sessions with mutual TLS
// 1.3, on one UDP port for each node.
//
// Membership comes from github.com/hashicorp/memberlist. [Transport] carries
// memberlist's packets as datagrams, and its streams as streams of the session to a
// node. [Node] adds messages:
//
//	n, err := cluster.Start(&cluster.Config{
//		TransportConfig: cluster.TransportConfig{
//			Bind: "10.0.0.1:7946", Certificate: cert, CA: pool, Cluster: "nodes.example",
//		},
//		Seeds: []string{"10.0.0.2:7946", "10.0.0.3:7946"},
//	})
//	err = n.Send(ctx, "other", []byte("reliable, in order, once"))
//	err = n.SendDatagram("other", []byte("perhaps"))
//	err = n.Broadcast(ctx, []byte("to all members"))
//	m, err := n.Receive(ctx)
//	e := <-n.Events() // who has joined, left or died
//
// README.md says what it promises, and its limits.
package cluster
