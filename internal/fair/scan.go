package fair

// anyRatio is a ratio below all others, as a power of two.
const anyRatio = -64

// Scan is a scan of all holders, of which each part looks at some of them. Sizes are in
// bytes.
type Scan struct {
	At      int    // slot of the next holder
	large   int64  // what a holder holds at most that does not count as large
	holders int64  // those that are large
	rest    int64  // what the others hold
	census  Census // of the holders before at that do not pay
	Line    Rank   // holders of this rank or above pay; fair.NoRank: not known yet, or none
}

// NewScan returns a scan in which nobody pays yet.
func NewScan(large int64) *Scan { return &Scan{large: large, Line: NoRank} }

// Pays reports whether a holder pays, of held bytes that has moved recent ones lately. It
// does if it is above the line, and its ratio at least the given power of two. share is
// what each may hold.
func (s *Scan) Pays(held, recent, share int64, exponent int) bool {
	if held == 0 {
		return false
	}
	rank := RankOf(held, recent, held > share)
	if rank >= s.Line && rank.Holds(exponent) {
		return true
	}
	s.census.Add(rank, held)
	if held > s.large {
		s.holders++
	} else {
		s.rest += held
	}
	return false
}

// Passed records that so many slots were looked at.
func (s *Scan) Passed(slots int) { s.At += slots }

// Nobody reports whether nobody pays in this scan.
func (s *Scan) Nobody() bool { return s.Line == NoRank }

// End ends a scan, and begins another. It returns the share of a holder (max-min
// fairness): what those leave of limit that are not large, divided by the number of the
// others. Who holds more than the line of the next scan holds enough for the rest to fit
// into the limit, which is exceeded by over.
func (s *Scan) End(limit, over int64, exponent int) (share int64) {
	share = max((limit-s.rest)/max(s.holders, 1), s.large)
	*s = Scan{large: s.large, Line: s.census.Line(over, exponent)}
	return share
}

// LeastRatio returns how much holders hold that may pay now, for each byte that they have
// moved lately, as a power of two. Beyond the limit that is sixteen times as much, and at
// least 16 KiB: what nothing has arrived for in about ten seconds. A live peer has
// retransmitted what is missing by then, which is accepted in any case. Further on, in
// steps of margin, it is four times as much, then half as much, and at last anything.
func LeastRatio(over, margin int64) (exponent int) {
	switch {
	case over <= margin:
		return 4
	case over <= 2*margin:
		return 2
	case over <= 4*margin:
		return -1
	}
	return anyRatio
}
