package refcluster

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// chance is what is random about one object: a function of seed, kind and
// number alone, so that a pod, its handle and its block agree.
type chance struct{ sum [sha256.Size]byte }

func (s Spec) chance(kind string, n int) chance {
	var buf [64]byte
	b := binary.BigEndian.AppendUint64(buf[:0], s.Seed)
	b = binary.BigEndian.AppendUint64(b, uint64(n))
	return chance{sha256.Sum256(append(b, kind...))}
}

// containerID is 64 hex digits.
func (c chance) containerID() string { return hex.EncodeToString(c.sum[:]) }

// uid has the form of a random UUID.
func (c chance) uid() types.UID {
	b := sha256.Sum256(c.sum[:])
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return types.UID(fmt.Sprintf("%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:16]))
}

func (c chance) rand() *rand.Rand {
	return rand.New(rand.NewPCG(binary.BigEndian.Uint64(c.sum[:]), binary.BigEndian.Uint64(c.sum[8:])))
}

// before is a time that long before now, whole seconds as the API server keeps.
func (s Spec) before(d time.Duration) time.Time { return s.Now.Add(-d).UTC().Truncate(time.Second) }
