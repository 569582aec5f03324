package server

import (
	"fmt"
	"strings"
)

// Strategy is a method to select the agent for a destination.
type Strategy string

const (
	Default      Strategy = "default"      // any agent
	DestHost     Strategy = "destHost"     // an agent whose identifiers include the destination
	DefaultRoute Strategy = "defaultRoute" // an agent with the identifier default-route=true
)

// ParseStrategies parses a comma-separated list of strategies, in the order in which they are tried.
func ParseStrategies(list string) (all []Strategy, err error) {
	for word := range strings.SplitSeq(list, ",") {
		switch s := Strategy(strings.TrimSpace(word)); s {
		case Default, DestHost, DefaultRoute:
			all = append(all, s)
		case "":
		default:
			return nil, fmt.Errorf("unknown proxy strategy %q: want %s, %s or %s", s, Default, DestHost, DefaultRoute)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no proxy strategy: want %s, %s or %s", Default, DestHost, DefaultRoute)
	}
	return all, nil
}
