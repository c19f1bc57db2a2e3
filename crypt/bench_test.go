package crypt

import (
	"testing"

	"github.com/stretchr/testify/require"
)

const benchSize = 1400

func BenchmarkSeal(b *testing.B) {
	for _, m := range modes {
		b.Run(m.name, func(b *testing.B) {
			c := m.withKey(b, 1)
			packet := make([]byte, benchSize)
			b.SetBytes(benchSize)
			b.ReportAllocs()
			for b.Loop() {
				if err := c.Seal(packet); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkOpen(b *testing.B) {
	for _, m := range modes {
		b.Run(m.name, func(b *testing.B) {
			c := m.withKey(b, 1)
			sealed, packet := make([]byte, benchSize), make([]byte, benchSize)
			require.NoError(b, c.Seal(sealed))
			b.SetBytes(benchSize)
			b.ReportAllocs()
			for b.Loop() {
				copy(packet, sealed)
				if _, err := c.Open(packet); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkNonce(b *testing.B) {
	var s nonceSource
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		nonce := make([]byte, 12)
		for pb.Next() {
			s.fill(nonce)
		}
	})
}
