// Records settings that change in mid-flow: nodelay, interval, fast resend, congestion
// control, windows, MTU, stream mode, minimum RTO, fast resend limit and dead link. Besides:
// all calls before the first Update, several in one millisecond, clocks that go back or far
// ahead, packets that are forged, damaged or old, and readers that stop for a while.
#include "recorder.h"

// What a recording does, drawn once: a share in 1000 of the steps for each kind of call.
static uint32_t settings, forges, backs, reads, readsB, bulk;
static uint32_t widest; // MTU that the largest segment of A was made for

static void nodelayA(void) {
	int nodelay = rnd(3) ? -1 : (int)rnd(4), interval = rnd(3) ? -1 : rnd(8) ? (int)(10 + rnd(200)) : rnd(2) ? 0 : 6000;
	int resend = rnd(2) ? -1 : (int)rnd(6), nc = rnd(2) ? -1 : (int)rnd(2);
	ikcp_nodelay(A, nodelay, interval, resend, nc);
	printf("N %d %d %d %d\n", nodelay, interval, resend, nc);
	after();
}
static void windowA(void) {
	uint32_t snd[] = {0, 1, 2, 5, 32, 128, 200, 1000, 1 + rnd(300)}, rcv[] = {0, 1, 100, 128, 129, 200, 300, 5000, 65535};
	uint32_t s = pick(snd, 9), r = pick(rcv, 9);
	ikcp_wndsize(A, s, r);
	printf("W %u %u\n", s, r);
	after();
}

// mtuA changes the MTU. The reference writes beyond its buffer, which is three packets
// long, if a segment that waits is larger than that.
static void mtuA(void) {
	int mtu = rnd(8) ? 50 + rnd(rnd(2) ? 150 : 1351) : 49 - (int)rnd(60);
	if (ikcp_waitsnd(A) == 0) widest = A->mtu;
	if (mtu >= 50 && (mtu + 24) * 3 < (int)widest) mtu = widest;
	int r = ikcp_setmtu(A, mtu);
	if (r == 0 && A->mtu > widest) widest = A->mtu;
	printf("M %d %d\n", mtu, r);
	after();
}
static void fieldA(void) {
	printf("V ");
	switch (rnd(4)) {
	case 0: printf("stream %d\n", A->stream = rnd(2)); break;
	case 1: printf("minrto %d\n", A->rx_minrto = 1 + rnd(rnd(2) ? 100 : 2000)); break;
	case 2: printf("fastlimit %d\n", A->fastlimit = rnd(4)); break;
	case 3: printf("deadlink %u\n", A->dead_link = rnd(2) ? 1 + rnd(5) : 20); break;
	}
	after();
}
static void change(void) {
	switch (rnd(7)) {
	case 0: case 1: case 2: nodelayA(); break;
	case 3: windowA(); break;
	case 4: mtuA(); break;
	default: fieldA();
	}
}

static void put32(char *p, uint32_t v) { memcpy(p, &v, 4); }

// forge passes A a packet that B has not sent: probes, window updates, acknowledgements of
// anything, old data, and packets that are damaged. Its una is not beyond snd_nxt.
static void forge(void) {
	static char p[4 * 64];
	int len = 0;
	for (int n = 1 + rnd(3); n > 0; n--) {
		char *h = p + len;
		uint32_t span = A->snd_nxt - A->snd_una, extra = rnd(4) ? 0 : rnd(30), sn = A->snd_una - 2 + rnd(span + 4);
		int cmd = 82 + rnd(3);
		if (rnd(4) == 0) cmd = 81, sn = rnd(2) ? A->rcv_nxt - 1 - rnd(200) : A->rcv_nxt + A->rcv_wnd + rnd(5);
		put32(h, rnd(40) ? A->conv : A->conv + 1);
		h[4] = rnd(40) ? cmd : rnd(80);
		h[5] = 0;
		uint16_t wnd = rnd(4) ? A->rmt_wnd : rnd(3) * rnd(200);
		memcpy(h + 6, &wnd, 2);
		put32(h + 8, A->current - rnd(400) + rnd(100));
		put32(h + 12, sn);
		put32(h + 16, A->snd_una - rnd(4) + (rnd(6) ? 0 : rnd(span + 1)));
		if ((int32_t)(A->snd_nxt - *(uint32_t *)(h + 16)) < 0) put32(h + 16, A->snd_nxt);
		put32(h + 20, rnd(40) ? extra : rnd(2) ? 0xffffffffu - rnd(9) : extra + 1 + rnd(99));
		for (uint32_t i = 0; i < extra; i++) h[24 + i] = rnd(256);
		len += 24 + extra;
	}
	inputA(p, rnd(20) ? len : (int)rnd(len + 1));
}
static void send(void) {
	uint32_t mss = A->mss;
	uint32_t sz[] = {0, 1, mss - 1, mss, mss + 1, rnd(4 * mss), rnd(4 * mss), rnd(20 * mss),
		126 * mss + 1, 127 * mss, 127 * mss + 1, 128 * mss - 1, 128 * mss, 128 * mss + 1, rnd(300 * mss)};
	if (A->nsnd_que > 300 && rnd(4)) return;
	sendA(pick(sz, rnd(1000) < bulk ? 15 : 8));
}
static void receive(void) {
	int want = ikcp_peeksize(A);
	int cap[] = {want, want, want, want - 1, want + 1, 0, 1, (int)rnd(3000), 1 << 20};
	int c = cap[rnd(9)];
	recvA(c > 0 ? c : 0);
}
static void peek(void) {
	printf("P %d\n", ikcp_peeksize(A));
	after();
	printf("Q %d\n", ikcp_waitsnd(A));
	after();
}

// step is one call, or some.
static void step(void) {
	if (rnd(1000) < settings) change();
	if (rnd(1000) < forges) forge();
	if (rnd(1000) < reads) receive();
	switch (rnd(12)) {
	case 0: case 1: send(); break;
	case 2: flushA(); break;
	case 3: checkA(); break;
	case 4: peek(); break;
	case 5: inputA(buf, rnd(2) ? 0 : (int)rnd(24)); break;
	case 6: for (int n = 1 + rnd(3); n > 0; n--) updateA(); break;
	case 7: case 8: {
		uint32_t len = rnd(1000) < bulk ? rnd(128 * B->mss) : rnd(3 * B->mss);
		if (B->nsnd_que < 200) ikcp_send(B, buf, len);
		break;
	}
	case 9: if (rnd(20) == 0) B->stream = rnd(2); break;
	}
	if (rnd(1000) < readsB) readB(20);
}

// tick moves the clock, which stands still as often as not.
static void tick(void) {
	uint32_t far = rnd(20) ? 11000 : 1u << rnd(27);
	uint32_t ahead[] = {0, 0, 0, 0, 1, 1, 2, 5, 10, 20, 50, rnd(200), rnd(40) ? 3 : 6000, rnd(60) ? 1 : far};
	now += pick(ahead, 14);
	if (rnd(1000) < backs) now -= rnd(10) ? rnd(60) : rnd(2) ? rnd(9000) : 10001 + rnd(1000);
	if (rnd(300) == 0) reads = rnd(3) * 300; // a reader that stops, or goes on
	if (rnd(300) == 0) readsB = rnd(3) * 300;
}

static void begin(void) {
	uint32_t conv = rnd(2147483647), mtu = rnd(3) ? 50 + rnd(200) : 50 + rnd(1351);
	uint32_t sn = rnd(2) ? 0 : 0xffffffffu - rnd(400);
	int stream = rnd(2);
	now = rnd(2) ? rnd(100000) : 0xffffffffu - rnd(20000);
	loss = rnd(2) ? 0 : rnd(30);
	delay = 1 + rnd(80);
	jitter = rnd(3) ? rnd(60) : 0;
	settings = rnd(4) ? rnd(100) : 400;
	forges = rnd(2) ? 0 : rnd(60);
	backs = rnd(2) ? 0 : rnd(40);
	reads = readsB = 300;
	bulk = rnd(2) ? 50 : rnd(500);
	A = ikcp_create(conv, 0);
	B = ikcp_create(conv, 0);
	ikcp_setoutput(A, outA);
	ikcp_setoutput(B, outB);
	ikcp_setmtu(A, mtu);
	ikcp_setmtu(B, mtu);
	widest = mtu;
	ikcp_wndsize(B, 300, 1 + rnd(300));
	ikcp_nodelay(B, 1, 10 + rnd(50), 2, 1);
	A->stream = stream;
	B->stream = rnd(2);
	A->snd_una = A->snd_nxt = A->rcv_nxt = B->snd_una = B->snd_nxt = B->rcv_nxt = sn;
	printf("kcp-trace 1\nconfig conv=%u mtu=%u sndwnd=32 rcvwnd=128 nodelay=0 interval=100 resend=0 nc=0 stream=%d minrto=-1 sn=%u clock=%u\n",
		conv, mtu, stream, sn, now);
	after();
}

int main(int argc, char **argv) {
	seed(argv[1]);
	begin();
	for (int n = rnd(3) * rnd(20); n > 0; n--) step(); // mostly before the first Update
	if (rnd(2)) change();
	for (int n = 300 + rnd(700); n > 0; n--) {
		tick();
		step();
		ikcp_update(B, now);
		deliver();
		for (int n = rnd(4) ? rnd(3) : 0; n > 0; n--) updateA();
	}
	return 0;
}
