package schema

import (
	"github.com/google/cel-go/checker"
	apicel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/library"
)

// estimatorOf knows how large the values that an expression on n sees can be.
func estimatorOf(n *node) checker.CostEstimator {
	return &library.CostEstimator{SizeEstimator: sizes{n}}
}

// sizes knows from the schema how large values below a node can be.
type sizes struct{ root *node }

// EstimateSize implements checker.CostEstimator.
func (s sizes) EstimateSize(element checker.AstNode) *checker.SizeEstimate {
	path := element.Path()
	if len(path) == 0 {
		return nil
	}
	n := s.root
	for _, name := range path[1:] { // behind self or oldSelf
		switch name {
		case "@items", "@values":
			n = n.element()
		case "@keys":
			if !n.isMap() {
				return nil
			}
			n = mapKey
		default:
			n = n.field(name)
		}
		if n == nil {
			return nil
		}
	}
	return &checker.SizeEstimate{Max: uint64(n.longest())}
}

// mapKey is a string of which upstream says that it has no characters.
var mapKey = &node{typ: "boolean"}

// EstimateCallCost implements checker.CostEstimator.
func (s sizes) EstimateCallCost(string, string, *checker.AstNode, []checker.AstNode) *checker.CallEstimate {
	return nil
}

// maxCardinality is how many values of n fit into one request.
func (n *node) maxCardinality() uint64 {
	return uint64(apicel.DefaultMaxRequestSizeBytes / (n.smallest() + len64(`,`)))
}
