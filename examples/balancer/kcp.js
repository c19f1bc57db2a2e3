// What nginx needs to send all packets of a KCP session to one server. WIRE.md
// §4.4 says which bytes of a packet a balancer may rely on.

export default {preread};

// preread looks at the first datagram of a client's address and port. nginx sends
// those that follow from there the same way. preread sets two variables:
//
//   $kcp_key     what to hash: the conversation id, or else the client's address
//   $kcp_source  for proxy_bind: an address for each conversation, or nothing
//
// README.md says when to use the second.
function preread(s) {
    s.variables.kcp_key = s.remoteAddress;
    s.variables.kcp_source = '';
    s.on('upstream', function (packet) {
        s.off('upstream');
        if (isParity(packet)) {
            s.deny();
            return;
        }
        const at = conversationAt(packet);
        if (at >= 0) {
            s.variables.kcp_key = 'conv=' + packet.readUInt32LE(at);
            s.variables.kcp_source = source(packet, at);
        }
        s.done();
    });
}

const headerSize = 24; // of a segment
const fecHeaderSize = 8; // seqid 4, type 2, size 2

// isParity reports whether a packet is parity of FEC, which names no conversation.
// It must not decide where the packets behind it go. It is dropped, as the network
// may drop it, and the next packet decides.
function isParity(packet) {
    return packet.length > fecHeaderSize && fecType(packet) == 0xf2;
}

// fecType returns the type in an FEC header, or 0 if the packet is too short.
function fecType(packet) {
    return packet.length > fecHeaderSize ? packet.readUInt16LE(4) : 0;
}

// conversationAt returns where a packet has its conversation id, or -1 if it shows
// none. The types of the three forms differ in the byte at offset 4.
function conversationAt(packet) {
    switch (fecType(packet)) {
    case 0xf1: // data
        return sizeFits(packet) && isSegment(packet, fecHeaderSize) ? fecHeaderSize : -1;
    case 0xf3: // datagram: the id, and the payload
        return sizeFits(packet) && packet.length >= fecHeaderSize + 4 ? fecHeaderSize : -1;
    }
    return isProtected(packet) || isSegment(packet, 0) ? 0 : -1;
}

// sizeFits reports whether the size in an FEC header is the packet's. It
// counts itself and what follows.
function sizeFits(packet) {
    return packet.readUInt16LE(6) == packet.length - 6;
}

// isSegment reports whether a segment begins at an offset.
function isSegment(packet, at) {
    if (packet.length < at + headerSize) {
        return false;
    }
    const cmd = packet[at + 4];
    return cmd >= 81 && cmd <= 87 && packet.readUInt32LE(at + 20) <= packet.length - at - headerSize;
}

// isProtected reports whether a packet has the header of those under keys of TLS.
function isProtected(packet) {
    if (packet.length < 25) { // header 9, tag 16
        return false;
    }
    const type = packet[4] & ~0x08; // the bit: with a nonce of its own
    return type >= 0xa1 && type <= 0xa3;
}

// source returns an address of the loopback network 127.64.0.0/10 and a port from
// 20000 to 21023. Each conversation id has its own, as both have 32 bits together.
function source(packet, at) {
    const low = packet[at + 3] >> 6;
    const host = [127, 64 + (packet[at + 3] & 63), packet[at + 2], packet[at + 1]];
    return host.join('.') + ':' + (20000 + 4 * packet[at] + low);
}
