package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"reflect"
	"slices"
	"strings"
	"text/tabwriter"
)

// A result is a struct: each field has its name in a json tag, and what it means in a tag `is`. Numbers are of type
// int or float64.

// report writes a result, as one JSON object or for people.
func report(w io.Writer, result any, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(result)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range fields(result) {
		fmt.Fprintf(t, "%s\t%s\t%s\n", f.name, f.text(), f.meaning)
	}
	return t.Flush()
}

// brief is a result on one line.
func brief(result any) string {
	var b strings.Builder
	for i, f := range fields(result) {
		if i > 0 {
			b.WriteString(" ")
		}
		fmt.Fprintf(&b, "%s=%s", f.name, f.text())
	}
	return b.String()
}

type field struct {
	name, meaning string
	value         reflect.Value
}

func fields(result any) []field {
	v := reflect.ValueOf(result)
	var all []field
	for i := range v.NumField() {
		tag := v.Type().Field(i).Tag
		all = append(all, field{name: tag.Get("json"), meaning: tag.Get("is"), value: v.Field(i)})
	}
	return all
}

// text shows a number as a person can use it.
func (f field) text() string {
	if f.value.Kind() != reflect.Float64 {
		return fmt.Sprint(f.value)
	}
	switch x := f.value.Float(); {
	case math.Abs(x) >= 1000:
		return fmt.Sprintf("%.0f", x)
	case math.Abs(x) >= 100:
		return fmt.Sprintf("%.1f", x)
	case math.Abs(x) >= 1:
		return fmt.Sprintf("%.2f", x)
	default:
		return fmt.Sprintf("%.3f", x)
	}
}

// median is the result whose every number is the median of that number in all runs. What is no number is as in the
// first one.
func median[T any](runs []T) T {
	result := runs[0]
	into := reflect.ValueOf(&result).Elem()
	for i := range into.NumField() {
		var values []float64
		for _, r := range runs {
			switch f := reflect.ValueOf(r).Field(i); f.Kind() {
			case reflect.Int:
				values = append(values, float64(f.Int()))
			case reflect.Float64:
				values = append(values, f.Float())
			}
		}
		switch f := into.Field(i); f.Kind() {
		case reflect.Int:
			f.SetInt(int64(math.Round(middle(values))))
		case reflect.Float64:
			f.SetFloat(math.Round(middle(values)*1e4) / 1e4)
		}
	}
	return result
}

// middle is the median.
func middle(values []float64) float64 {
	v := slices.Sorted(slices.Values(values))
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

// percentile of sorted values, by the nearest rank.
func percentile(sorted []float64, p float64) float64 {
	rank := int(math.Ceil(p / 100 * float64(len(sorted))))
	return sorted[max(rank-1, 0)]
}
