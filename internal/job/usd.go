package job

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// USD is an amount of money in millionths of a US dollar. Its JSON and SQL form
// is a decimal string, "1.25".
type USD int64

const microsPerUSD = 1_000_000

// maxUSD keeps sums far from overflow.
const maxUSD = USD(1_000_000 * microsPerUSD)

// USDFromFloat rounds f dollars to a millionth, half away from zero. What is not
// a number, or out of range, is clamped.
func USDFromFloat(f float64) USD {
	switch {
	case math.IsNaN(f):
		return 0
	case f >= maxUSD.Float():
		return maxUSD
	case f <= -maxUSD.Float():
		return -maxUSD
	}
	return USD(math.Round(f * microsPerUSD))
}

// Float is u in dollars.
func (u USD) Float() float64 { return float64(u) / microsPerUSD }

// String is u as a decimal with at least two digits after the point: "0.05",
// "0.012345".
func (u USD) String() string {
	sign, v := "", uint64(u)
	if u < 0 {
		sign, v = "-", uint64(-u)
	}
	frac := fmt.Sprintf("%06d", v%microsPerUSD)
	frac = frac[:2] + strings.TrimRight(frac[2:], "0")
	return sign + strconv.FormatUint(v/microsPerUSD, 10) + "." + frac
}

// ParseUSD reads a plain decimal number of dollars with at most six digits after
// the point.
func ParseUSD(s string) (USD, error) {
	whole, frac, point := strings.Cut(s, ".")
	neg := strings.HasPrefix(whole, "-")
	whole = strings.TrimPrefix(whole, "-")
	if !digits(whole) || len(whole) > 7 || (point && !digits(frac)) || len(frac) > 6 {
		return 0, fmt.Errorf("%q is not an amount of US dollars: want a decimal such as \"2.50\", at most six digits after the point and at most 1000000", clip(s))
	}
	w, err := strconv.ParseInt(whole, 10, 64)
	if err != nil {
		return 0, err
	}
	f, err := strconv.ParseInt((frac + "000000")[:6], 10, 64)
	if err != nil {
		return 0, err
	}
	u := USD(w*microsPerUSD + f)
	if u > maxUSD {
		return 0, fmt.Errorf("%q is more than 1000000 dollars", clip(s))
	}
	if neg {
		u = -u
	}
	return u, nil
}

func digits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}

// MarshalText writes String's form.
func (u USD) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// UnmarshalText reads ParseUSD's form.
func (u *USD) UnmarshalText(b []byte) error {
	v, err := ParseUSD(string(b))
	if err == nil {
		*u = v
	}
	return err
}
