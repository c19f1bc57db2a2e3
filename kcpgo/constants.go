package kcp

// Constants of the protocol. They have the values of kcp-go and of the C
// reference. Times are in milliseconds, windows in segments, sizes in bytes.
const (
	IKCP_RTO_NDL = 30    // least retransmission time-out with nodelay
	IKCP_RTO_MIN = 100   // least retransmission time-out without
	IKCP_RTO_DEF = 200   // retransmission time-out before the first sample
	IKCP_RTO_MAX = 60000 // largest retransmission time-out

	IKCP_CMD_PUSH = 81 // command of a segment: data
	IKCP_CMD_ACK  = 82 // command of a segment: acknowledgement
	IKCP_CMD_WASK = 83 // command of a segment: window probe
	IKCP_CMD_WINS = 84 // command of a segment: window announcement

	IKCP_ASK_SEND = 1 // a window probe is due
	IKCP_ASK_TELL = 2 // a window announcement is due

	IKCP_WND_SND = 32   // default send window
	IKCP_WND_RCV = 32   // default receive window of kcp-go; here it is 128 at least
	IKCP_MTU_DEF = 1400 // default packet size

	IKCP_ACK_FAST    = 3      // duplicate acknowledgements of a fast retransmission
	IKCP_INTERVAL    = 100    // default flush interval
	IKCP_OVERHEAD    = 24     // size of a segment header
	IKCP_DEADLINK    = 20     // transmissions of one segment after which a link counts as dead
	IKCP_THRESH_INIT = 2      // first slow-start threshold
	IKCP_THRESH_MIN  = 2      // least slow-start threshold
	IKCP_PROBE_INIT  = 500    // first wait before a window probe
	IKCP_PROBE_LIMIT = 120000 // longest wait before a window probe
	IKCP_SN_OFFSET   = 12     // offset of the sequence number in a segment header
)

// PacketType says where a packet for KCP.Input comes from.
type PacketType int8

const (
	// IKCP_PACKET_REGULAR is a packet that has arrived by itself.
	IKCP_PACKET_REGULAR PacketType = iota
	// IKCP_PACKET_FEC is a packet that error correction has restored. It gives
	// no round-trip sample, and its window is not taken.
	IKCP_PACKET_FEC
)

// FlushType selects what a flush sends. No exported function takes it; it is
// here because kcp-go exports it.
type FlushType int8

const (
	// IKCP_FLUSH_ACKONLY sends acknowledgements.
	IKCP_FLUSH_ACKONLY FlushType = 1 << iota
	// IKCP_FLUSH_FULL sends everything that is due.
	IKCP_FLUSH_FULL
)

// KCPLogType is a set of events for SetLogger.
type KCPLogType int32

// Events for SetLogger, one bit each.
const (
	IKCP_LOG_OUTPUT KCPLogType = 1 << iota
	IKCP_LOG_INPUT
	IKCP_LOG_SEND
	IKCP_LOG_RECV
	IKCP_LOG_OUT_ACK
	IKCP_LOG_OUT_PUSH
	IKCP_LOG_OUT_WASK
	IKCP_LOG_OUT_WINS
	IKCP_LOG_IN_ACK
	IKCP_LOG_IN_PUSH
	IKCP_LOG_IN_WASK
	IKCP_LOG_IN_WINS
)

// Sets of events for SetLogger.
const (
	IKCP_LOG_OUTPUT_ALL = IKCP_LOG_OUTPUT | IKCP_LOG_OUT_ACK | IKCP_LOG_OUT_PUSH | IKCP_LOG_OUT_WASK | IKCP_LOG_OUT_WINS
	IKCP_LOG_INPUT_ALL  = IKCP_LOG_INPUT | IKCP_LOG_IN_ACK | IKCP_LOG_IN_PUSH | IKCP_LOG_IN_WASK | IKCP_LOG_IN_WINS
	IKCP_LOG_ALL        = IKCP_LOG_OUTPUT_ALL | IKCP_LOG_INPUT_ALL | IKCP_LOG_SEND | IKCP_LOG_RECV
)
