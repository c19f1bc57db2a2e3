-- A Wireshark dissector for KCP: segments, kcp-go's forward error correction and
-- datagrams, and the signals, pieces and protected packets of
-- github.com/arqnet/kcp. WIRE.md describes all of them. What a cipher of
-- kcp-go's has encrypted cannot be told from noise, and is left to "Data".
--
-- Use:   tshark -X lua_script:kcp.lua -r capture.pcap
-- or put the file into Wireshark's folder of personal Lua plugins. Packets are
-- recognised by their content on any UDP port; "Decode As ... KCP" forces it.
-- doc.go says how to capture where the kernel merges packets.

local kcp = Proto("kcp", "KCP")

local PUSH, ACK, WASK, WINS, PIECE, STREAM, STREAM_PIECE = 81, 82, 83, 84, 85, 86, 87
local commands = {
  [PUSH] = "PUSH", [ACK] = "ACK", [WASK] = "WASK", [WINS] = "WINS", [PIECE] = "PIECE",
  [STREAM] = "STREAM", [STREAM_PIECE] = "STREAM PIECE",
}

-- Kinds of STREAM segments, and how many bytes of fields each has at least.
local DATA, ABANDON, FIN, RESET, STOP, CREDIT, OPEN, MAX_STREAMS = 0, 1, 2, 3, 4, 5, 6, 7
local stream_kinds = {
  [DATA] = "DATA", [ABANDON] = "ABANDON", [FIN] = "FIN", [RESET] = "RESET", [STOP] = "STOP", [CREDIT] = "CREDIT", [OPEN] = "OPEN",
  [MAX_STREAMS] = "MAX_STREAMS",
}
local stream_fields = { [DATA] = 4, [ABANDON] = 6, [FIN] = 4, [RESET] = 8, [STOP] = 8, [CREDIT] = 4, [OPEN] = 0 }

local FEC_DATA, FEC_PARITY, DATAGRAM = 0x00f1, 0x00f2, 0x00f3
local fec_types = { [FEC_DATA] = "FEC data", [FEC_PARITY] = "FEC parity", [DATAGRAM] = "datagram" }

local protected_types = {
  [0xa1] = "protected, handshake keys",
  [0xa2] = "protected, key phase 0",
  [0xa3] = "protected, key phase 1",
  [0xa9] = "protected, handshake keys, own nonce",
  [0xaa] = "protected, key phase 0, own nonce",
  [0xab] = "protected, key phase 1, own nonce",
}

-- Codes of signals, and what their sn and ts mean. Answers have bit 0x80, and the
-- arguments of the request except for WELCOME.
local signals = {
  [1] = { "HELLO", "zero", "token of the sender" },
  [2] = { "INFO", "version", "capabilities" },
  [3] = { "CONFIRM", "token of the receiver", "token of the sender" },
  [4] = { "FIN", "final sequence number", "token of the receiver" },
  [5] = { "CLOSE", "final sequence number", "token of the receiver" },
  [6] = { "PING", "random", "random" },
  [7] = { "COOKIE", "cookie", "cookie" },
  [8] = { "RESET", "sn of the request", "ts of the request" },
  [9] = { "ABORT", "token of the receiver", "zero" },
  [10] = { "PROBE", "random", "size of the packet" },
  [11] = { "TOKEN", "token of the receiver", "token of the sender" },
  [12] = { "CRYPTO", "offset", "bytes" },
  [13] = { "ALERT", "TLS alert", "token of the receiver" },
  [14] = { "RESETKEY", "seconds", "mask" },
  [15] = { "TIEBREAKER", "random", "random" },
  [16] = { "COUNT", "packets sent", "packets missing" },
}
local CLOSE, PROBE, CRYPTO = 5, 10, 12
local WELCOME = 0x81

-- signal returns the name of the signal with a code, and what its sn and ts mean.
local function signal(code)
  if code == WELCOME then
    return "WELCOME", "token of the sender", "token of the receiver"
  end
  local s = signals[code % 0x80]
  if s == nil then
    return string.format("unknown signal %d", code), "argument", "argument"
  elseif code >= 0x80 then
    return "answer to " .. s[1], s[2], s[3]
  end
  return s[1], s[2], s[3]
end

local f = {
  name = ProtoField.string("kcp.name", "Kind"),
  conv = ProtoField.uint32("kcp.conv", "Conversation", base.HEX),
  cmd = ProtoField.uint8("kcp.cmd", "Command", base.DEC, commands),
  frg = ProtoField.uint8("kcp.frg", "Fragments that follow"),
  signal = ProtoField.uint8("kcp.signal", "Signal", base.HEX),
  wnd = ProtoField.uint16("kcp.wnd", "Window"),
  ts = ProtoField.uint32("kcp.ts", "Time"),
  sn = ProtoField.uint32("kcp.sn", "Sequence number"),
  una = ProtoField.uint32("kcp.una", "Unacknowledged (una)"),
  len = ProtoField.uint32("kcp.len", "Length"),
  data = ProtoField.bytes("kcp.data", "Payload"),
  copy_sn = ProtoField.uint32("kcp.copy.sn", "Sequence number of the copy"),
  copy_ts = ProtoField.uint32("kcp.copy.ts", "Time of the copies"),
  copy_frg = ProtoField.uint8("kcp.copy.frg", "Fragments that follow"),
  copy_stream = ProtoField.bool("kcp.copy.stream", "Of a STREAM segment"),
  copies_size = ProtoField.uint16("kcp.copies.size", "Size of the copies"),
  piece_offset = ProtoField.uint16("kcp.piece.offset", "Offset of the piece"),
  piece_size = ProtoField.uint16("kcp.piece.size", "Size of the segment"),
  close_code = ProtoField.uint64("kcp.close.code", "Code"),
  close_text = ProtoField.string("kcp.close.text", "Text"),
  stream = ProtoField.uint32("kcp.stream", "Stream"),
  stream_kind = ProtoField.uint8("kcp.stream.kind", "Kind", base.DEC, stream_kinds, 0x07),
  stream_end = ProtoField.bool("kcp.stream.end", "The message ends here", 8, nil, 0x08),
  stream_fragmented = ProtoField.bool("kcp.stream.fragmented", "Fragment number", 8, nil, 0x10),
  stream_options = ProtoField.bool("kcp.stream.options", "Options", 8, nil, 0x20),
  stream_unordered = ProtoField.bool("kcp.stream.unordered", "Unordered", 8, nil, 0x01),
  stream_priority = ProtoField.int8("kcp.stream.priority", "Priority"),
  stream_retransmits = ProtoField.uint16("kcp.stream.retransmits", "Limit of retransmissions and one; 0: none"),
  stream_lifetime = ProtoField.uint32("kcp.stream.lifetime", "Lifetime in milliseconds; 0: no limit"),
  stream_message = ProtoField.uint32("kcp.stream.message", "Message"),
  stream_fragment = ProtoField.uint32("kcp.stream.fragment", "Fragment"),
  stream_ssn = ProtoField.uint32("kcp.stream.ssn", "Stream sequence number"),
  stream_frg = ProtoField.uint8("kcp.stream.frg", "Fragments that follow"),
  stream_abandoned = ProtoField.uint16("kcp.stream.abandoned", "Payload of the DATA in place of which this is"),
  stream_code = ProtoField.uint64("kcp.stream.code", "Code"),
  stream_count = ProtoField.uint32("kcp.stream.count", "Streams that the receiver may open in all"),
  stream_limit = ProtoField.uint32("kcp.stream.limit", "Limit"),
  crypto_nonce = ProtoField.bytes("kcp.crypto.nonce", "Nonce"),
  crypto = ProtoField.bytes("kcp.crypto", "Sealed bytes of the TLS handshake"),
  crypto_tag = ProtoField.bytes("kcp.crypto.tag", "Tag"),
  fec_seqid = ProtoField.uint32("kcp.fec.seqid", "FEC sequence number"),
  fec_type = ProtoField.uint16("kcp.fec.type", "Type", base.HEX, fec_types),
  fec_size = ProtoField.uint16("kcp.fec.size", "Size"),
  parity = ProtoField.bytes("kcp.fec.parity", "Parity"),
  datagram = ProtoField.bytes("kcp.datagram", "Datagram"),
  protected_type = ProtoField.uint8("kcp.protected.type", "Type", base.HEX, protected_types),
  protected_number = ProtoField.uint32("kcp.protected.number", "Packet number, lowest 32 bits"),
  protected_nonce = ProtoField.bytes("kcp.protected.nonce", "Nonce"),
  protected_content = ProtoField.bytes("kcp.protected.content", "Sealed content"),
  protected_tag = ProtoField.bytes("kcp.protected.tag", "Tag"),
  rest = ProtoField.bytes("kcp.rest", "Ignored rest"),
}
local fields = {}
for _, field in pairs(f) do
  fields[#fields + 1] = field
end
kcp.fields = fields

local bad = ProtoExpert.new("kcp.bad", "Malformed KCP packet", expert.group.MALFORMED, expert.severity.ERROR)
local again = ProtoExpert.new("kcp.analysis.retransmission", "Retransmission: a segment of this number was captured before", expert.group.SEQUENCE, expert.severity.NOTE)
kcp.experts = { bad, again }

-- Of each segment with data in the clear: in which frame it was first captured.
local first = {}
local frame = nil -- what is being dissected

-- mark_repeated marks the segment at at if an earlier frame has it: a
-- retransmission, or a redundant copy. part is the offset of a piece.
local function mark_repeated(tree, tvb, at, part)
  local key = string.format("%s %d %s %d %s %d", tostring(frame.src), frame.src_port, tostring(frame.dst), frame.dst_port,
    tvb(at, 5):bytes():tohex() .. tvb(at + 12, 4):bytes():tohex(), part)
  if first[key] == nil then
    first[key] = frame.number
  elseif first[key] < frame.number then
    tree:add_proto_expert_info(again)
  end
end

local HEADER, FEC_HEADER, DATAGRAM_HEADER = 24, 8, 12
local PROTECTED_HEADER, TAG = 9, 16
local OWN_NONCE, NONCE = 0xa9, 12
local ACK_COPIES = 8 -- bytes in front of the copies in an ACK

-- payload_ok reports whether a segment of a kind may have n bytes of payload.
local function payload_ok(cmd, frg, n)
  if cmd == PUSH then
    return true
  elseif cmd == PIECE or cmd == STREAM_PIECE then
    return n > 4
  elseif cmd == STREAM then
    return n >= 5
  elseif cmd == ACK and n >= ACK_COPIES then
    return true
  elseif frg == PROBE or frg == CLOSE or frg == CRYPTO then
    return true
  end
  return n == 0
end

-- is_segments reports whether all of the bytes from at on are segments of one
-- conversation: the heuristic for packets on unknown ports.
local function is_segments(tvb, at)
  local conv, found = nil, false
  while tvb:len() - at >= HEADER do
    local cmd, frg, n = tvb(at + 4, 1):uint(), tvb(at + 5, 1):uint(), tvb(at + 20, 4):le_uint()
    if commands[cmd] == nil or n > tvb:len() - at - HEADER or not payload_ok(cmd, frg, n) then
      return false
    end
    if conv ~= nil and conv ~= tvb(at, 4):le_uint() then
      return false
    end
    conv, found = tvb(at, 4):le_uint(), true
    at = at + HEADER + n
  end
  return found and at == tvb:len()
end

-- fec_type returns the type of a packet with an FEC header; nil: it has none.
local function fec_type(tvb)
  if tvb:len() < FEC_HEADER then
    return nil
  end
  local t = tvb(4, 2):le_uint()
  return fec_types[t] and t or nil
end

-- is_protected reports whether a packet has the header of a protected one.
local function is_protected(tvb)
  return tvb:len() >= PROTECTED_HEADER + TAG and protected_types[tvb(4, 1):uint()] ~= nil
end

-- is_kcp reports whether a packet looks like one of KCP.
local function is_kcp(tvb)
  local t = fec_type(tvb)
  if t == FEC_DATA then
    return tvb(6, 2):le_uint() == tvb:len() - 6 and is_segments(tvb, FEC_HEADER)
  elseif t == FEC_PARITY then
    return tvb:len() > FEC_HEADER
  elseif t == DATAGRAM then
    return tvb:len() >= DATAGRAM_HEADER and tvb(0, 4):uint() == 0xffffffff and tvb(6, 2):le_uint() == tvb:len() - 6
  end
  return is_segments(tvb, 0)
end

-- name adds the kind of a segment or packet to the tree, and to the list for the
-- info column.
local function name(tree, names, kind, more)
  tree:add(f.name, kind):set_generated()
  tree:append_text(": " .. kind .. (more and (" " .. more) or ""))
  names[#names + 1] = kind .. (more and (" " .. more) or "")
end

-- arguments adds sn and ts, which mean something else in each kind.
local function arguments(tree, tvb, at, sn, ts)
  tree:add_le(f.ts, tvb(at + 8, 4)):append_text(ts and (" (" .. ts .. ")") or "")
  tree:add_le(f.sn, tvb(at + 12, 4)):append_text(sn and (" (" .. sn .. ")") or "")
end

-- dissect_signal adds what is particular to a signal.
local function dissect_signal(tree, tvb, at, n, names)
  local code = tvb(at + 5, 1):uint()
  local kind, sn, ts = signal(code)
  tree:add(f.signal, tvb(at + 5, 1)):append_text(" (" .. kind .. ")")
  arguments(tree, tvb, at, sn, ts)
  local more = nil
  local payload = n > 0 and tvb(at + HEADER, n) or nil
  if code == CLOSE and n >= 8 then
    tree:add_le(f.close_code, payload(0, 8))
    if n > 8 then
      tree:add(f.close_text, payload(8))
    end
  elseif code == CRYPTO and n >= NONCE + TAG then
    tree:add(f.crypto_nonce, payload(0, NONCE))
    if n > NONCE + TAG then
      tree:add(f.crypto, payload(NONCE, n - NONCE - TAG))
    end
    tree:add(f.crypto_tag, payload(n - TAG, TAG))
    more = string.format("%d+%d sealed", tvb(at + 12, 4):le_uint(), tvb(at + 8, 4):le_uint())
  elseif payload then
    tree:add(f.data, payload)
  end
  name(tree, names, kind, more)
end

-- dissect_own adds the content p of a segment of the session itself, stream 0. It reports
-- false if it is malformed.
local function dissect_own(tree, p, names, kind)
  if p:len() < 10 then
    return false
  end
  tree:add_le(f.stream_ssn, p(5, 4))
  tree:add(f.stream_frg, p(9, 1))
  if p:len() > 10 then
    tree:add(f.data, p(10))
  end
  name(tree, names, "STREAM " .. kind, string.format("stream=0 len=%d", p:len() - 10))
  return true
end

-- dissect_stream adds the content p of a STREAM segment. It reports false if it is
-- malformed.
local function dissect_stream(tree, p, names)
  if p:len() < 5 then
    return false
  end
  local bits, at = p(4, 1):uint(), 5
  local kind = bits % 8
  tree:add_le(f.stream, p(0, 4))
  for _, field in ipairs({ f.stream_kind, f.stream_end, f.stream_fragmented, f.stream_options }) do
    tree:add(field, p(4, 1))
  end
  if p(0, 4):le_uint() == 0 and (bits == DATA or bits == ABANDON + 8) then
    return dissect_own(tree, p, names, stream_kinds[kind])
  elseif p(0, 4):le_uint() == 0 and bits == MAX_STREAMS then
    if p:len() ~= 9 then
      return false
    end
    tree:add_le(f.stream_count, p(5, 4))
    name(tree, names, "STREAM MAX_STREAMS", string.format("count=%d", p(5, 4):le_uint()))
    return true
  end
  local need = stream_fields[kind]
  local fragmented, options = bits % 32 >= 16, bits % 64 >= 32
  if need == nil or p:len() < at + (options and 8 or 0) + need + (fragmented and 4 or 0) then
    return false
  end
  if options then
    tree:add(f.stream_unordered, p(at, 1))
    tree:add(f.stream_priority, p(at + 1, 1))
    tree:add_le(f.stream_retransmits, p(at + 2, 2))
    tree:add_le(f.stream_lifetime, p(at + 4, 4))
    at = at + 8
  end
  if kind == DATA or kind == ABANDON or kind == FIN then
    tree:add_le(f.stream_message, p(at, 4))
  elseif kind == RESET or kind == STOP then
    tree:add_le(f.stream_code, p(at, 8))
  elseif kind == CREDIT then
    tree:add_le(f.stream_limit, p(at, 4))
  end
  if kind == ABANDON then
    tree:add_le(f.stream_abandoned, p(at + 4, 2))
  elseif kind == DATA and fragmented then
    tree:add_le(f.stream_fragment, p(at + 4, 4))
    at = at + 4
  end
  at = at + need
  if at < p:len() then
    tree:add(f.data, p(at))
  end
  name(tree, names, "STREAM " .. stream_kinds[kind], string.format("stream=%d len=%d", p(0, 4):le_uint(), p:len() - at))
  return true
end

-- copy_at returns the copy at at, which ends before to: where its data begins, the
-- data's size, frg, and whether it is of a STREAM segment; nil: it is malformed.
local function copy_at(tvb, at, to)
  if at + 2 > to then
    return nil
  end
  local size, frg, stream = tvb(at + 1, 1):uint(), 0, false
  at = at + 2
  if size >= 0x80 then
    if at == to then
      return nil
    end
    local third = tvb(at, 1):uint()
    size, stream = size - 0x80 + math.floor(third / 4) * 0x80, third % 2 == 1
    at = at + 1
    if third % 4 >= 2 then
      if at == to then
        return nil
      end
      frg = tvb(at, 1):uint()
      at = at + 1
    end
  end
  if at + size > to then
    return nil
  end
  return at, size, frg, stream
end

-- copies_in returns where the copies begin and end that the segment at at carries; nil:
-- it carries none.
local function copies_in(tvb, at, cmd, frg, n)
  local from, to = at + HEADER + ACK_COPIES, at + HEADER + n
  if (cmd == PUSH or cmd == STREAM) and frg >= 0x80 and n >= 2 then
    to = to - 2
    from = to - tvb(to, 2):le_uint()
    if from < at + HEADER then
      return nil
    end
  elseif cmd ~= ACK or n < ACK_COPIES then
    return nil
  end
  local p = from
  while p < to do
    local data, size = copy_at(tvb, p, to)
    if data == nil then
      return nil
    end
    p = data + size
  end
  return from, to
end

-- dissect_copies adds the copies between from and to that the segment at at carries.
local function dissect_copies(tree, tvb, at, from, to, names)
  local base = tvb(at + 12, 4):le_uint()
  if tvb(at + 4, 1):uint() == ACK then
    base = tvb(from - ACK_COPIES, 4):le_uint()
    tree:add_le(f.copy_ts, tvb(from - 4, 4))
  else
    tree:add_le(f.copies_size, tvb(to, 2))
  end
  while from < to do
    local data, size, frg, stream = copy_at(tvb, from, to)
    local sn = (base - tvb(from, 1):int()) % 0x100000000
    local copy = tree:add(kcp, tvb(from, data + size - from), "Copy")
    copy:add(f.copy_sn, tvb(from, 1), sn)
    copy:add(f.copy_stream, tvb(from + 1, 1), stream)
    copy:add(f.copy_frg, tvb(from, data - from), frg)
    if size > 0 then
      copy:add(f.data, tvb(data, size))
    end
    name(copy, names, "COPY", string.format("sn=%d len=%d", sn, size))
    from = data + size
  end
end

-- dissect_segment adds the segment at at, and returns where the next one begins;
-- nil: the segment is malformed.
local function dissect_segment(tvb, at, parent, names)
  local cmd, frg = tvb(at + 4, 1):uint(), tvb(at + 5, 1):uint()
  local n, left = tvb(at + 20, 4):le_uint(), tvb:len() - at - HEADER
  local tree = parent:add(kcp, tvb(at, HEADER + math.min(n, left)), "Segment")
  tree:add_le(f.conv, tvb(at, 4))
  tree:add(f.cmd, tvb(at + 4, 1))
  tree:add_le(f.wnd, tvb(at + 6, 2))
  tree:add_le(f.una, tvb(at + 16, 4))
  tree:add_le(f.len, tvb(at + 20, 4))
  if commands[cmd] == nil then
    tree:add_proto_expert_info(bad, string.format("unknown command %d", cmd))
    return nil
  elseif n > left then
    tree:add_proto_expert_info(bad, "the segment is longer than its packet")
    return nil
  end
  local sn = string.format("sn=%d", tvb(at + 12, 4):le_uint())
  local from, to = copies_in(tvb, at, cmd, frg, n)
  local whole = n
  if from ~= nil then
    n = cmd == ACK and 0 or from - at - HEADER
  end
  if (cmd == WASK or cmd == WINS) and frg ~= 0 then
    dissect_signal(tree, tvb, at, n, names)
  elseif cmd == STREAM then
    mark_repeated(tree, tvb, at, 0)
    arguments(tree, tvb, at)
    tree:add(f.frg, tvb(at + 5, 1))
    if n == 0 or not dissect_stream(tree, tvb(at + HEADER, n), names) then
      tree:add_proto_expert_info(bad, "not a STREAM segment")
      return nil
    end
  elseif cmd == PIECE or cmd == STREAM_PIECE then
    arguments(tree, tvb, at)
    tree:add(f.frg, tvb(at + 5, 1))
    if n <= 4 then
      tree:add_proto_expert_info(bad, "a piece without payload")
      return nil
    end
    mark_repeated(tree, tvb, at, tvb(at + HEADER, 2):le_uint())
    tree:add_le(f.piece_offset, tvb(at + HEADER, 2))
    tree:add_le(f.piece_size, tvb(at + HEADER + 2, 2))
    tree:add(f.data, tvb(at + HEADER + 4, n - 4))
    name(tree, names, commands[cmd], string.format("%s %d+%d", sn, tvb(at + HEADER, 2):le_uint(), n - 4))
  else
    arguments(tree, tvb, at)
    tree:add(f.frg, tvb(at + 5, 1))
    if n > 0 then
      tree:add(f.data, tvb(at + HEADER, n))
    end
    local more = nil
    if cmd == PUSH then
      mark_repeated(tree, tvb, at, 0)
      more = string.format("%s len=%d", sn, n)
    elseif cmd == ACK then
      more = sn
    end
    name(tree, names, commands[cmd], more)
  end
  if from ~= nil then
    dissect_copies(tree, tvb, at, from, to, names)
  end
  return at + HEADER + whole
end

-- dissect_segments adds the segments from at on.
local function dissect_segments(tvb, at, tree, names)
  while tvb:len() - at >= HEADER do
    at = dissect_segment(tvb, at, tree, names)
    if at == nil then
      return
    end
  end
  if at < tvb:len() then
    tree:add(f.rest, tvb(at))
  end
end

-- dissect_fec adds a packet with an FEC header.
local function dissect_fec(tvb, tree, names, kind)
  tree:add_le(f.fec_seqid, tvb(0, 4))
  tree:add_le(f.fec_type, tvb(4, 2))
  if kind == FEC_PARITY then
    tree:add(f.parity, tvb(6))
    name(tree, names, "FEC parity", string.format("seqid=%d", tvb(0, 4):le_uint()))
    return
  end
  tree:add_le(f.fec_size, tvb(6, 2))
  if tvb(6, 2):le_uint() ~= tvb:len() - 6 then
    tree:add_proto_expert_info(bad, "the size differs from the packet's")
    return
  end
  if kind == FEC_DATA then
    names[#names + 1] = string.format("FEC data seqid=%d:", tvb(0, 4):le_uint())
    dissect_segments(tvb, FEC_HEADER, tree, names)
  elseif tvb:len() < DATAGRAM_HEADER then
    tree:add_proto_expert_info(bad, "a datagram without conversation")
  else
    tree:add_le(f.conv, tvb(8, 4))
    if tvb:len() > DATAGRAM_HEADER then
      tree:add(f.datagram, tvb(DATAGRAM_HEADER))
    end
    name(tree, names, "datagram", string.format("len=%d", tvb:len() - DATAGRAM_HEADER))
  end
end

-- dissect_protected adds a packet whose content TLS keys have sealed.
local function dissect_protected(tvb, tree, names)
  tree:add_le(f.conv, tvb(0, 4))
  tree:add(f.protected_type, tvb(4, 1))
  tree:add_le(f.protected_number, tvb(5, 4))
  local at, tag = PROTECTED_HEADER, tvb:len() - TAG
  if tvb(4, 1):uint() >= OWN_NONCE and tag - at >= NONCE then
    tree:add(f.protected_nonce, tvb(at, NONCE))
    at = at + NONCE
  end
  if tag > at then
    tree:add(f.protected_content, tvb(at, tag - at))
  end
  tree:add(f.protected_tag, tvb(tag))
  name(tree, names, protected_types[tvb(4, 1):uint()], string.format("number=%d", tvb(5, 4):le_uint()))
end

-- dissect is the dissector.
local function dissect(tvb, pinfo, root)
  if tvb:len() == 0 then
    return 0
  end
  pinfo.cols.protocol = "KCP"
  local tree, names = root:add(kcp, tvb()), {}
  frame = pinfo
  local kind = fec_type(tvb)
  if kind then
    dissect_fec(tvb, tree, names, kind)
  elseif is_protected(tvb) then
    dissect_protected(tvb, tree, names)
  elseif tvb:len() < HEADER then
    tree:add_proto_expert_info(bad, "shorter than a segment header")
  else
    dissect_segments(tvb, 0, tree, names)
  end
  pinfo.cols.info = table.concat(names, ", ")
  return tvb:len()
end

function kcp.dissector(tvb, pinfo, root)
  return dissect(tvb, pinfo, root)
end

-- Conversations in which a packet in the clear was recognised. Protected packets
-- show too little to be recognised by themselves: they count if they belong to
-- such a conversation.
local known = {}

function kcp.init()
  known, first = {}, {}
end

-- by_content is the heuristic for UDP.
local function by_content(tvb, pinfo, root)
  if tvb:len() < FEC_HEADER then
    return false
  end
  if is_kcp(tvb) then
    if fec_type(tvb) == nil then
      known[tvb(0, 4):uint()] = true
    end
  elseif not (is_protected(tvb) and known[tvb(0, 4):uint()]) then
    return false
  end
  dissect(tvb, pinfo, root)
  return true
end

kcp:register_heuristic("udp", by_content)
DissectorTable.get("udp.port"):add_for_decode_as(kcp)
