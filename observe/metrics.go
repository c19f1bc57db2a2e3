package observe

import (
	"slices"
	"strings"

	"github.com/arqnet/kcp/stats"
	"github.com/prometheus/client_golang/prometheus"
)

const (
	gauge   = prometheus.GaugeValue
	counter = prometheus.CounterValue
)

// one returns the values of a metric without a label of its own.
func one(f func(s *stats.Endpoint, t *stats.Totals) float64) func(*stats.Endpoint, *stats.Totals) []value {
	return func(s *stats.Endpoint, t *stats.Totals) []value { return []value{{n: f(s, t)}} }
}

// cause returns the name of a limit as the value of a label, such as peer_window.
func cause(l stats.Limit) string {
	return strings.NewReplacer("'s", "", " ", "_").Replace(l.String())
}

// metrics returns all metrics except the round-trip times. Their names follow
// the conventions of Prometheus.
func metrics() []metric {
	return slices.Concat(sessionMetrics(), packetMetrics(), segmentMetrics(), streamMetrics(), extraMetrics())
}

// sessionMetrics returns those about the sessions of an endpoint.
func sessionMetrics() []metric {
	return []metric{
		{"sessions", "Open sessions, including those that wait for Accept.", "", gauge, one(func(s *stats.Endpoint, t *stats.Totals) float64 { return float64(s.Sessions) })},
		{"sessions_peak", "The most sessions that were open at a time.", "", gauge, one(func(s *stats.Endpoint, t *stats.Totals) float64 { return float64(s.Peak) })},
		{"sessions_backlog", "Sessions that wait for Accept.", "", gauge, one(func(s *stats.Endpoint, t *stats.Totals) float64 { return float64(s.Backlog) })},
		{"sessions_half_open", "Accepted sessions of peers whose addresses are not validated.", "", gauge, one(func(s *stats.Endpoint, t *stats.Totals) float64 { return float64(s.HalfOpen) })},
		{"held_bytes", "Memory that sessions hold because of what their peers have sent.", "", gauge, one(func(s *stats.Endpoint, t *stats.Totals) float64 { return float64(s.Buffered) })},
		{"write_buffered_bytes", "Memory of what sessions and their streams have to send, or to be acknowledged.", "", gauge, one(func(s *stats.Endpoint, t *stats.Totals) float64 { return float64(s.WriteBuffered) })},
		{"max_sessions", "The most sessions that may be open (Limits.MaxSessions).", "", gauge, one(func(s *stats.Endpoint, t *stats.Totals) float64 { return float64(s.Limits.Sessions) })},
		{"max_sessions_backlog", "The most sessions that may wait for Accept (Limits.Backlog).", "", gauge, one(func(s *stats.Endpoint, t *stats.Totals) float64 { return float64(s.Limits.Backlog) })},
		{"max_sessions_half_open", "The most accepted sessions of peers whose addresses are not validated (Limits.MaxHalfOpen).", "", gauge, one(func(s *stats.Endpoint, t *stats.Totals) float64 { return float64(s.Limits.HalfOpen) })},
		{"max_buffered_bytes", "The limit of kcp_held_bytes (Limits.MaxBuffered).", "", gauge, one(func(s *stats.Endpoint, t *stats.Totals) float64 { return float64(s.Limits.Buffered) })},
		{"sessions_opened_total", "Sessions opened, by the side that opened them.", "side", counter, func(s *stats.Endpoint, t *stats.Totals) []value {
			return []value{
				{"dialled", float64(s.Dialled)},
				{"accepted", float64(s.Accepted)},
			}
		}},
		{"sessions_ended_total", "Sessions ended, by cause.", "cause", counter, func(s *stats.Endpoint, t *stats.Totals) []value {
			return []value{
				{"closed", float64(s.Ended.Closed)},
				{"peer_closed", float64(s.Ended.PeerClosed)},
				{"aborted", float64(s.Ended.Aborted)},
				{"not_delivered", float64(s.Ended.NotDelivered)},
				{"reset", float64(s.Ended.Reset)},
				{"refused", float64(s.Ended.Refused)},
				{"no_answer", float64(s.Ended.NoAnswer)},
				{"lost", float64(s.Ended.Lost)},
				{"idle", float64(s.Ended.Idle)},
				{"stalled", float64(s.Ended.Stalled)},
				{"memory", float64(s.Ended.Memory)},
				{"unaccepted", float64(s.Ended.Unaccepted)},
				{"failed", float64(s.Ended.Failed)},
			}
		}},
		{"limited_seconds_total", "Time of all sessions, those that have ended included, by what kept them from sending more then. The rate is how many sessions it has limited.", "cause", counter, func(s *stats.Endpoint, t *stats.Totals) []value {
			all := make([]value, len(t.Limited))
			for i, d := range t.Limited {
				all[i] = value{cause(stats.Limit(i)), d.Seconds()}
			}
			return all
		}},
	}
}

// packetMetrics returns those about the packets of an endpoint.
func packetMetrics() []metric {
	return []metric{
		{"packets_sent_total", "UDP datagrams sent.", "", counter, one(func(s *stats.Endpoint, t *stats.Totals) float64 { return float64(s.PacketsSent) })},
		{"packets_received_total", "UDP datagrams received.", "", counter, one(func(s *stats.Endpoint, t *stats.Totals) float64 { return float64(s.PacketsReceived) })},
		{"sent_bytes_total", "UDP payload sent.", "", counter, one(func(s *stats.Endpoint, t *stats.Totals) float64 { return float64(s.BytesSent) })},
		{"received_bytes_total", "UDP payload received.", "", counter, one(func(s *stats.Endpoint, t *stats.Totals) float64 { return float64(s.BytesReceived) })},
		{"socket_errors_total", "Errors of the socket.", "operation", counter, func(s *stats.Endpoint, t *stats.Totals) []value {
			return []value{
				{"read", float64(s.ReadErrors)},
				{"write", float64(s.WriteErrors)},
			}
		}},
		{"socket_dropped_packets_total", "Datagrams that the system dropped because the receive buffer was full; Linux only.", "", counter, one(func(s *stats.Endpoint, t *stats.Totals) float64 { return float64(s.SocketDrops) })},
		{"too_large_packets_total", "Datagrams that the interface did not take; their sessions went on with smaller ones.", "", counter, one(func(s *stats.Endpoint, t *stats.Totals) float64 { return float64(s.TooLarge) })},
		{"unmerged_peers", "Addresses to which the system refuses datagrams that are merged (GSO).", "", gauge, one(func(s *stats.Endpoint, t *stats.Totals) float64 { return float64(s.UnmergedPeers) })},
		{"wakeup_lag_seconds", "Quantiles of how late the wake-ups of sessions were in the last seconds, for lack of processor time.", "share", gauge, func(s *stats.Endpoint, t *stats.Totals) []value {
			return []value{
				{"0.5", s.Lag.P50.Seconds()},
				{"1", s.Lag.Max.Seconds()},
			}
		}},
		{"packets_dropped_total", "Received packets that no session took, by reason.", "reason", counter, func(s *stats.Endpoint, t *stats.Totals) []value {
			return []value{
				{"short", float64(s.DropShort)},
				{"cipher", float64(s.DropCipher)},
				{"replay", float64(s.DropReplay)},
				{"unknown", float64(s.DropUnknown)},
				{"ended", float64(s.DropEnded)},
				{"sessions", float64(s.DropSessions)},
				{"half_open", float64(s.DropHalfOpen)},
				{"backlog", float64(s.DropBacklog)},
				{"handshake", float64(s.DropHandshake)},
			}
		}},
		{"packets_withheld_total", "Packets that were not sent, by the limit.", "reason", counter, func(s *stats.Endpoint, t *stats.Totals) []value {
			return []value{
				{"reply_rate", float64(s.DropReplies)},
				{"amplification", float64(s.DropCredit)},
			}
		}},
		{"handshake_errors_total", "Handshakes of TLS that have failed.", "", counter, one(func(s *stats.Endpoint, t *stats.Totals) float64 { return float64(s.HandshakeErrors) })},
		{"resets_sent_total", "Stateless resets sent to peers of forgotten sessions with TLS.", "", counter, one(func(s *stats.Endpoint, t *stats.Totals) float64 { return float64(s.ResetsSent) })},
		{"forwarded_packets_total", "Packets passed on to processes that have handed over.", "", counter, one(func(s *stats.Endpoint, t *stats.Totals) float64 { return float64(s.Forwarded) })},
		{"forwarded_packets_dropped_total", "Packets passed on that the other process did not read in time.", "", counter, one(func(s *stats.Endpoint, t *stats.Totals) float64 { return float64(s.DropForward) })},
		{"predecessor_sessions", "Sessions of processes that have handed over.", "", gauge, one(func(s *stats.Endpoint, t *stats.Totals) float64 { return float64(s.PredecessorSessions) })},
		{"cookies_sent_total", "Cookies sent to new peers.", "", counter, one(func(s *stats.Endpoint, t *stats.Totals) float64 { return float64(s.CookiesSent) })},
	}
}

// segmentMetrics returns those about the segments of all sessions.
func segmentMetrics() []metric {
	return []metric{
		{"payload_sent_bytes_total", "Payload sent, each byte once.", "", counter, one(func(s *stats.Endpoint, t *stats.Totals) float64 { return float64(t.BytesSent) })},
		{"payload_acked_bytes_total", "Payload that the peers' endpoints have acknowledged.", "", counter, one(func(s *stats.Endpoint, t *stats.Totals) float64 { return float64(t.BytesAcked) })},
		{"payload_received_bytes_total", "Payload received, each byte once.", "", counter, one(func(s *stats.Endpoint, t *stats.Totals) float64 { return float64(t.BytesReceived) })},
		{"segment_packets_sent_total", "Packets with segments that sessions have sent.", "", counter, one(func(s *stats.Endpoint, t *stats.Totals) float64 { return float64(t.PacketsSent) })},
		{"segment_packets_received_total", "Packets with segments that sessions have accepted.", "", counter, one(func(s *stats.Endpoint, t *stats.Totals) float64 { return float64(t.PacketsReceived) })},
		{"segments_sent_total", "Data segments sent, first transmissions.", "", counter, one(func(s *stats.Endpoint, t *stats.Totals) float64 { return float64(t.SegmentsSent) })},
		{"segments_retransmitted_total", "Data segments retransmitted, by what came first: the time-out, or a sign of the loss.", "trigger", counter, func(s *stats.Endpoint, t *stats.Totals) []value {
			return []value{
				{"timeout", float64(t.TimeoutRetransmits)},
				{"early", float64(t.FastRetransmits)},
			}
		}},
		{"segments_retransmitted_spurious_total", "Retransmissions of segments that had arrived.", "", counter, one(func(s *stats.Endpoint, t *stats.Totals) float64 { return float64(t.SpuriousRetransmits) })},
		{"segments_repeated_total", "Redundant copies of data segments sent.", "", counter, one(func(s *stats.Endpoint, t *stats.Totals) float64 { return float64(t.Repeats) })},
		{"segments_received_total", "Data segments received, including duplicates.", "", counter, one(func(s *stats.Endpoint, t *stats.Totals) float64 { return float64(t.SegmentsReceived) })},
		{"segments_duplicate_total", "Data segments received again.", "", counter, one(func(s *stats.Endpoint, t *stats.Totals) float64 { return float64(t.Duplicates) })},
		{"segments_out_of_window_total", "Data segments beyond the receive window or the memory allowed.", "", counter, one(func(s *stats.Endpoint, t *stats.Totals) float64 { return float64(t.OutOfWindow) })},
		{"messages_broken_total", "Messages dropped because their fragments do not fit together.", "", counter, one(func(s *stats.Endpoint, t *stats.Totals) float64 { return float64(t.BrokenMessages) })},
		{"acks_sent_total", "ACK segments sent.", "", counter, one(func(s *stats.Endpoint, t *stats.Totals) float64 { return float64(t.AcksSent) })},
		{"acks_received_total", "ACK segments received.", "", counter, one(func(s *stats.Endpoint, t *stats.Totals) float64 { return float64(t.AcksReceived) })},
		{"window_probes_total", "Window probes, by direction; signals of the peer are among those received.", "direction", counter, func(s *stats.Endpoint, t *stats.Totals) []value {
			return []value{
				{"sent", float64(t.ProbesSent)},
				{"received", float64(t.ProbesReceived)},
			}
		}},
		{"window_updates_received_total", "Window updates received.", "", counter, one(func(s *stats.Endpoint, t *stats.Totals) float64 { return float64(t.WindowUpdates) })},
		{"session_packets_refused_total", "Packets that sessions refused, by reason.", "reason", counter, func(s *stats.Endpoint, t *stats.Totals) []value {
			return []value{
				{"short", float64(t.Dropped.Short)},
				{"conversation", float64(t.Dropped.Conv)},
				{"length", float64(t.Dropped.Length)},
				{"command", float64(t.Dropped.Command)},
				{"una", float64(t.Dropped.Una)},
				{"piece", float64(t.Dropped.Piece)},
				{"requests", float64(t.Dropped.Requests)},
				{"stream", float64(t.Dropped.Stream)},
				{"fec", float64(t.Dropped.FEC)},
			}
		}},
	}
}

// streamMetrics returns those about the streams of all sessions.
func streamMetrics() []metric {
	return []metric{
		{"streams", "Streams that are not over.", "", gauge, one(func(s *stats.Endpoint, t *stats.Totals) float64 {
			return float64(t.Streams.Opened + t.Streams.Accepted - t.Streams.Ended)
		})},
		{"streams_opened_total", "Streams opened, by the side that opened them.", "side", counter, func(s *stats.Endpoint, t *stats.Totals) []value {
			return []value{
				{"local", float64(t.Streams.Opened)},
				{"peer", float64(t.Streams.Accepted)},
			}
		}},
		{"streams_refused_total", "Streams of peers that were refused, beyond Limits.MaxStreams.", "", counter, one(func(s *stats.Endpoint, t *stats.Totals) float64 { return float64(t.Streams.Refused) })},
		{"streams_ended_total", "Streams that are over, also of ended sessions.", "", counter, one(func(s *stats.Endpoint, t *stats.Totals) float64 { return float64(t.Streams.Ended) })},
		{"streams_reset_total", "Streams reset with a code other than 0, by either end.", "", counter, one(func(s *stats.Endpoint, t *stats.Totals) float64 { return float64(t.Streams.Reset) })},
	}
}

// extraMetrics returns those about what goes past the segments, and about the path.
func extraMetrics() []metric {
	return []metric{
		{"datagrams_sent_total", "Unreliable datagrams sent.", "", counter, one(func(s *stats.Endpoint, t *stats.Totals) float64 { return float64(t.Datagrams.Sent) })},
		{"datagrams_received_total", "Unreliable datagrams received, including dropped ones.", "", counter, one(func(s *stats.Endpoint, t *stats.Totals) float64 { return float64(t.Datagrams.Received) })},
		{"datagrams_dropped_total", "Unreliable datagrams received and dropped.", "", counter, one(func(s *stats.Endpoint, t *stats.Totals) float64 { return float64(t.Datagrams.Dropped) })},
		{"datagrams_unsent_total", "Unreliable datagrams not sent, for lack of room or of a validated address.", "", counter, one(func(s *stats.Endpoint, t *stats.Totals) float64 { return float64(t.Datagrams.Unsent) })},
		{"fec_packets_sent_total", "Packets sent with forward error correction.", "kind", counter, func(s *stats.Endpoint, t *stats.Totals) []value {
			return []value{
				{"data", float64(t.FEC.DataSent)},
				{"parity", float64(t.FEC.ParitySent)},
			}
		}},
		{"fec_packets_received_total", "Packets received with forward error correction.", "kind", counter, func(s *stats.Endpoint, t *stats.Totals) []value {
			return []value{
				{"data", float64(t.FEC.DataReceived)},
				{"parity", float64(t.FEC.ParityReceived)},
			}
		}},
		{"fec_packets_recovered_total", "Lost packets that parity has restored.", "", counter, one(func(s *stats.Endpoint, t *stats.Totals) float64 { return float64(t.FEC.Recovered) })},
		{"fec_groups_lost_total", "Groups with packets lost for good.", "", counter, one(func(s *stats.Endpoint, t *stats.Totals) float64 { return float64(t.FEC.Lost) })},
		{"mtu_probes_sent_total", "Probes of the path MTU sent.", "", counter, one(func(s *stats.Endpoint, t *stats.Totals) float64 { return float64(t.Probes.Sent) })},
		{"mtu_probes_lost_total", "Probes of the path MTU lost.", "", counter, one(func(s *stats.Endpoint, t *stats.Totals) float64 { return float64(t.Probes.Lost) })},
		{"mtu_black_holes_total", "Times that the path began to drop large packets.", "", counter, one(func(s *stats.Endpoint, t *stats.Totals) float64 { return float64(t.Probes.BlackHoles) })},
		{"migrations_total", "Changes of addresses of peers, and of this end's own.", "", counter, one(func(s *stats.Endpoint, t *stats.Totals) float64 { return float64(t.Moves) })},
	}
}
