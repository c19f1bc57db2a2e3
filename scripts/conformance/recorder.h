// What the generators of recordings share: a random source, a lossy network under a
// virtual clock, and the lines of a recording. testdata/conformance/README.md has the
// format. ikcp.h is the reference's own.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ikcp.h"

static uint64_t rs;
static uint32_t rnd(uint32_t n) {
	rs = rs * 6364136223846793005ull + 1442695040888963407ull;
	return n ? (uint32_t)((rs >> 33) % n) : 0;
}
static uint32_t pick(const uint32_t *v, int n) { return v[rnd(n)]; }

static void seed(const char *s) {
	rs = strtoull(s, 0, 10) * 2654435761u + 88172645463325252ull;
	for (int i = 0; i < 8; i++) rnd(2);
}

// The network: packets on their way to A, whose calls are recorded, and to B, its peer.
#define MAXQ 4096
struct pkt { uint32_t at; int len; char *b; };
static struct pkt toA[MAXQ], toB[MAXQ];
static int nA, nB;
static uint32_t now, loss, delay, jitter;
static ikcpcb *A, *B;

// What A has put out in the call that is recorded.
static char *outs[1 << 16];
static int outl[1 << 16], nout;

static void post(struct pkt *q, int *n, const char *b, int len) {
	for (int copies = 1 + (rnd(50) == 0); copies > 0; copies--) {
		if (rnd(100) < loss || *n >= MAXQ) continue;
		q[*n].at = now + delay + rnd(jitter + 1);
		q[*n].len = len;
		q[*n].b = malloc(len ? len : 1);
		memcpy(q[*n].b, b, len);
		(*n)++;
	}
}
static int outA(const char *b, int len, ikcpcb *k, void *u) {
	outs[nout] = malloc(len);
	memcpy(outs[nout], b, len);
	outl[nout++] = len;
	post(toB, &nB, b, len);
	return 0;
}
static int outB(const char *b, int len, ikcpcb *k, void *u) {
	post(toA, &nA, b, len);
	return 0;
}

static void hex(const char *b, int n) {
	if (n == 0) putchar('-');
	for (int i = 0; i < n; i++) printf("%02x", (unsigned char)b[i]);
}

static const char *names[19] = {"snd_una", "snd_nxt", "rcv_nxt", "ssthresh", "rttvar", "srtt", "rto", "rmt_wnd", "cwnd", "incr",
	"probe", "ts_probe", "probe_wait", "ts_flush", "nrcv_buf", "nsnd_buf", "nrcv_que", "nsnd_que", "state"};
static long last[19];
static int have;

// after ends the record of a call: what A has put out, and what has changed in it.
static void after(void) {
	for (int i = 0; i < nout; i++) {
		printf("> ");
		hex(outs[i], outl[i]);
		putchar('\n');
		free(outs[i]);
	}
	nout = 0;
	long v[19] = {A->snd_una, A->snd_nxt, A->rcv_nxt, A->ssthresh, A->rx_rttval, A->rx_srtt, A->rx_rto, A->rmt_wnd, A->cwnd, A->incr,
		A->probe, A->ts_probe, A->probe_wait, A->ts_flush, A->nrcv_buf, A->nsnd_buf, A->nrcv_que, A->nsnd_que, (IUINT32)A->state};
	int any = 0;
	for (int i = 0; i < 19; i++)
		if (!have || v[i] != last[i]) {
			printf("%s%s=%ld", any ? " " : "= ", names[i], v[i]);
			any = 1;
			last[i] = v[i];
		}
	if (any) putchar('\n');
	have = 1;
}

static char buf[1 << 20];

// The calls of A, recorded.
static void sendA(uint32_t len) {
	uint32_t tag = rnd(1000);
	for (uint32_t i = 0; i < len; i++) buf[i] = (char)(uint8_t)(tag * 131 + i * 7);
	int r = ikcp_send(A, buf, len);
	printf("S %u %u %d\n", len, tag, r);
	after();
}
static void recvA(int cap) {
	int r = ikcp_recv(A, buf, cap);
	printf("R %d %d ", cap, r);
	hex(buf, r > 0 ? r : 0);
	putchar('\n');
	after();
}
static void inputA(const char *b, int len) {
	int r = ikcp_input(A, b, len);
	printf("I ");
	hex(b, len);
	printf(" %d\n", r);
	after();
}
static void flushA(void) {
	ikcp_flush(A);
	printf("F\n");
	after();
}
static void checkA(void) {
	printf("C %u %u\n", now, ikcp_check(A, now));
	after();
}
static void updateA(void) {
	ikcp_update(A, now);
	printf("U %u\n", now);
	after();
}

// deliver passes on what has arrived at both ends.
static void deliver(void) {
	for (int i = 0; i < nB;)
		if ((int32_t)(now - toB[i].at) >= 0) {
			ikcp_input(B, toB[i].b, toB[i].len);
			free(toB[i].b);
			toB[i] = toB[--nB];
		} else i++;
	for (int i = 0; i < nA;)
		if ((int32_t)(now - toA[i].at) >= 0) {
			struct pkt p = toA[i];
			toA[i] = toA[--nA];
			inputA(p.b, p.len);
			free(p.b);
		} else i++;
}

// readB reads up to n messages at B, each nineteen times in twenty.
static void readB(int n) {
	for (int i = 0; i < n; i++) {
		int w = ikcp_peeksize(B);
		if (w < 0) break;
		char *p = malloc(w + 1);
		if (rnd(20)) ikcp_recv(B, p, w);
		free(p);
	}
}
