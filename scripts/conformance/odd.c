// Records calls of sizes around every limit, in both modes: empty sends, receives into
// buffers that are too small, clocks that jump, flushes at any time. The settings of a
// recording stay as they are.
#include "recorder.h"

// begin draws the settings of both ends, and prints those of A.
static void begin(void) {
	uint32_t conv = rnd(2147483647), mtu = rnd(3) ? 50 + rnd(200) : 50 + rnd(1351);
	uint32_t sndwnd = 1 + rnd(300), rcvwnd = 1 + rnd(300);
	int nodelay = rnd(2), interval = 10 + rnd(190), resend = rnd(4), nc = rnd(2), stream = rnd(3) != 0, minrto = rnd(3) ? -1 : 10 + (int)rnd(100);
	uint32_t sn = rnd(2) ? 0 : 0xffffffffu - rnd(400);
	now = rnd(2) ? rnd(100000) : 0xffffffffu - rnd(20000);
	loss = rnd(2) ? 0 : rnd(30);
	delay = 1 + rnd(80);
	jitter = rnd(60);
	A = ikcp_create(conv, 0), B = ikcp_create(conv, 0);
	ikcp_setoutput(A, outA);
	ikcp_setoutput(B, outB);
	ikcp_setmtu(A, mtu);
	ikcp_setmtu(B, mtu);
	ikcp_wndsize(A, sndwnd, rcvwnd);
	uint32_t rcvB = 1 + rnd(300), sndB = 1 + rnd(300);
	ikcp_wndsize(B, sndB, rcvB);
	ikcp_nodelay(A, nodelay, interval, resend, nc);
	int ncB = rnd(2), resendB = rnd(3), intervalB = 10 + rnd(50), nodelayB = rnd(2);
	ikcp_nodelay(B, nodelayB, intervalB, resendB, ncB);
	A->stream = B->stream = stream;
	if (minrto >= 0) A->rx_minrto = minrto;
	A->snd_una = A->snd_nxt = A->rcv_nxt = B->snd_una = B->snd_nxt = B->rcv_nxt = sn;
	printf("kcp-trace 1\nconfig conv=%u mtu=%u sndwnd=%u rcvwnd=%u nodelay=%d interval=%d resend=%d nc=%d stream=%d minrto=%d sn=%u clock=%u\n",
		conv, mtu, sndwnd, rcvwnd, nodelay, interval, resend, nc, stream, minrto, sn, now);
	after();
}

int main(int argc, char **argv) {
	seed(argv[1]);
	begin();
	uint32_t mss = A->mss;
	int steps = 800 + rnd(1200);
	for (int s = 0; s < steps; s++) {
		uint32_t jump[] = {0, 1, 1, 2, 5, 10, 20, 50, rnd(200), rnd(40) ? 3 : 6000, rnd(60) ? 1 : 11000};
		now += pick(jump, 11);
		switch (rnd(10)) {
		case 0:
		case 1: {
			uint32_t sz[] = {0, 1, mss - 1, mss, mss + 1, 2 * mss, 3 * mss + 1, rnd(4 * mss), rnd(20 * mss),
				126 * mss, 127 * mss - 1, 127 * mss, 127 * mss + 1, 128 * mss, 128 * mss + 1, 255 * mss, 256 * mss + 1, rnd(300 * mss)};
			uint32_t len = pick(sz, rnd(3) ? 9 : 18);
			if (A->nsnd_que > 600 && rnd(4)) break;
			sendA(len);
			break;
		}
		case 2: {
			int want = ikcp_peeksize(A);
			recvA(rnd(3) ? (want > 0 ? want : 1) : rnd(3) ? (int)rnd(2 * mss) : 1 << 20);
			break;
		}
		case 3:
			if (A->updated) flushA();
			break;
		case 4: checkA(); break;
		case 5: {
			uint32_t len = rnd(3) ? rnd(3 * mss) : rnd(130 * mss);
			if (B->nsnd_que < 200) ikcp_send(B, buf, len);
			break;
		}
		case 6: readB(20); break;
		}
		ikcp_update(B, now);
		deliver();
		if (rnd(4)) updateA();
	}
	return 0;
}
