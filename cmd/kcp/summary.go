package main

import (
	"errors"
	"fmt"
	"text/tabwriter"
)

// conclude prints the results. It fails if the received data differs from the
// sent data.
func (d *demo) conclude(directions ...*direction) error {
	if d.lines.on {
		return d.printResult(directions...)
	}
	out := d.std.out
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\n  direction\ttime\tgoodput\tresent\tpackets lost")
	for _, dir := range directions {
		relayed := &dir.relayed
		fmt.Fprintf(table, "  %s\t%s\t%s/s\t%s\t%d of %d\n",
			dir.name, formatTime(dir.took),
			formatBytes(float64(dir.size)/dir.took.Seconds()), resentShare(&dir.sender),
			relayed.Lost.Packets+relayed.Overflow.Packets, relayed.Sent.Packets)
	}
	table.Flush()
	fmt.Fprintln(out)
	for _, dir := range directions {
		recovered := &dir.receiver.FEC
		if recovered.ParityReceived > 0 {
			fmt.Fprintln(out, folded("  ", fmt.Sprintf("%s: %s recovered by parity", dir.name, plural(recovered.Recovered, "lost packet"))))
		}
		// A few may still be underway.
		if n := dir.overlooked(); d.settings.bare() && n > int64(dir.sender.PacketsSent/100) {
			fmt.Fprintln(out, folded("  ", fmt.Sprintf("%s: the system dropped %s, because socket buffers "+
				"were full; a smaller -sndwnd, or larger buffers, would help.", dir.name, plural(n, "more packet"))))
		}
	}
	intact := true
	for _, dir := range directions {
		intact = intact && dir.intact()
		fmt.Fprintf(out, "  sha256 of %s\n    sent      %x\n    received  %x\n", dir.name, dir.sentSum, dir.receivedSum)
	}
	fmt.Fprintln(out)
	if !intact {
		return errDamaged
	}
	fmt.Fprintln(out, "ok: both hashes match")
	return nil
}

// errDamaged is the error of a demo that has delivered other data.
var errDamaged = errors.New("FAILED: what arrived differs from what was sent")

// printResult is conclude with -json.
func (d *demo) printResult(directions ...*direction) error {
	intact := true
	o := jsonDemo{Type: "result", Seed: d.seed, Intact: &intact}
	for _, dir := range directions {
		intact = intact && dir.intact()
		o.Seconds = max(o.Seconds, dir.took.Seconds())
		o.Directions = append(o.Directions, dir.json())
	}
	if err := d.lines.print(o); err != nil || intact {
		return err
	}
	return errDamaged
}
