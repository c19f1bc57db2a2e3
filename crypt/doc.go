// Package crypt encrypts and checks single packets, in the formats of kcp-go.
//
// A [Cipher] serves all sessions of an endpoint. Both ends must use the same
// kind with the same key; nothing is negotiated.
//
// # Which one
//
// Use [AESGCM] if both ends run 64-bit programs on processors with AES
// instructions, as servers, PCs and phones have them, and [ChaCha20Poly1305]
// elsewhere. Use [XChaCha20Poly1305] if a key has to last, see below. These
// authenticate: a packet that opens was sealed with the key.
//
// Everything else is for peers that know nothing better. [CFB] and [Salsa20]
// hide the content from eavesdroppers, but an on-path attacker can change it. [XOR]
// and [None] give no security at all.
//
// They correspond to kcp-go's as follows:
//
//	kcp-go                                     here
//	NewAESGCMCrypt                             AESGCM
//	NewAEADCrypt                               AEAD
//	NewAESBlockCrypt and other block ciphers   CFB
//	NewSalsa20BlockCrypt                       Salsa20
//	NewSimpleXORBlockCrypt                     XOR
//	NewNoneBlockCrypt                          None
//
// # What no cipher here does
//
// One key is shared by all who use it, in both directions, for as long as they
// use it. Therefore even an authenticating cipher does not
//
//   - notice that a packet is replayed, to the peer, to
//     another one with the key, or back to its sender. Package kcp does, with
//     peers of its own, also under [CFB] and [Salsa20] once a session is open;
//     with others, such as kcp-go, only for a while, which is
//     why it does not let those open sessions unless Config.LegacyPeers is LegacyAllow;
//   - tell the holders of the key apart: each can read and forge what the others
//     send;
//   - keep the past secret: with the key, an attacker can read everything
//     that was recorded before;
//   - hide who talks to whom, when, and how much.
//
// Between endpoints of package kcp use kcp.Config.TLS if that matters: it makes fresh
// keys for each session, and protects datagrams and the session itself. With other
// peers run crypto/tls on top of a session. A cipher below it still keeps anyone
// without the key from opening sessions; datagrams stay outside of TLS then.
//
// # Keys
//
// A key is random bytes, as many as the cipher asks for, from crypto/rand:
//
//	key := make([]byte, 32)
//	rand.Read(key)
//
// A password is not a key. If people have to type it, make the key of it with
// a slow function such as Argon2id or scrypt, see the example; a fast hash lets
// anybody who has recorded one packet try billions of passwords a second. Use a
// key for one kind of cipher and one purpose only.
//
// # How long a key lasts
//
// Nonces are drawn at random, or made of a random beginning and a packet number,
// which repeat as seldom. With the 12 bytes of AES-GCM and
// ChaCha20-Poly1305 a repetition becomes a risk in the long run, and it would
// be a disaster: it gives away the XOR of two packets and lets their reader
// forge others. NIST SP 800-38D, section 8.3, therefore allows at most 2^32
// packets under one key. As the peer seals under the same key, a Cipher seals
// half as many, 2^31, and then refuses with [ErrKeyExhausted]. That is six
// hours at 100 000 packets a second, and 24 days at 1000.
//
// The count is one process's and one Cipher's. It knows nothing of other
// clients with the same key, other Ciphers made of it, or the time before a
// restart. If there are many of them, what all have sealed together must stay
// below 2^32: change the key earlier, give each client its own, or use
// [XChaCha20Poly1305], whose nonces of 24 bytes do not repeat in practice.
//
// A Cipher has one key for its life and packets do not name theirs. To change
// it, watch [Remaining], and either let both ends go on with new endpoints and
// new Ciphers, or write a Cipher that seals with the new key and opens with both
// for a while, as the example Rotation does.
//
// Nonces come from a generator inside the process, seeded by crypto/rand and
// seeded again every few thousand packets. If a virtual machine or process is
// frozen and its image is started more than once, the copies draw the same
// nonces for a while: give each a new key, or use a Cipher made afterwards.
package crypt
