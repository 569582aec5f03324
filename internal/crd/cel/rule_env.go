package cel

import (
	"errors"
	"fmt"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/checker"
	"k8s.io/apimachinery/pkg/util/version"
	apicel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"
)

// The variables of an expression.
const (
	selfVar    = "self"
	oldSelfVar = "oldSelf"
)

// newExpressionsVersion is the release whose functions new expressions may use. It is one release before v1.37, so
// that an API server can be downgraded by one release. Stored expressions may use all functions.
var newExpressionsVersion = version.MajorMinor(1, 36)

// language holds the functions and operators that expressions can call. All expressions share one cel.Env, because an
// Env is expensive to create. Each node has other types, but only the checker needs these.
type language struct {
	env      *cel.Env
	declared *checker.Env // the functions of env
	scalars  *apicel.DeclTypeProvider
}

var (
	newLanguage    = sync.OnceValue(func() *language { return readLanguage((*environment.EnvSet).NewExpressionsEnv) })
	storedLanguage = sync.OnceValue(func() *language {
		return readLanguage((*environment.EnvSet).StoredExpressionsEnv)
	})
)

func readLanguage(of func(*environment.EnvSet) *cel.Env) *language {
	env := of(environment.MustBaseEnvSet(newExpressionsVersion))
	declared, err := checker.NewEnv(env.Container, env.CELTypeProvider(), checker.CrossTypeNumericComparisons(true))
	for _, fn := range env.Functions() {
		if err == nil && !fn.IsDeclarationDisabled() {
			err = declared.AddFunctions(fn)
		}
	}
	scalars, scalarsErr := apicel.NewDeclTypeProvider().WithTypeProvider(env.CELTypeProvider())
	if err = errors.Join(err, scalarsErr); err != nil {
		panic(fmt.Sprintf("schema: declare the functions of CEL: %v", err)) // the functions are constant
	}
	return &language{env, declared, scalars}
}

// check parses expr and type-checks it with chk, as cel.Env.Compile does. If mixed is true, lists and maps may have
// values of several types.
func (l *language) check(expr string, chk *checker.Env, mixed bool) (*cel.Ast, *cel.Issues) {
	ast, issues := l.env.Parse(expr)
	if issues.Err() != nil {
		return nil, issues
	}
	checked, errs := checker.Check(ast.NativeRep(), ast.Source(), chk)
	issues = cel.NewIssuesWithSourceInfo(errs, checked.SourceInfo())
	if len(errs.GetErrors()) > 0 {
		return nil, issues
	}
	config := validatorConfig{cel.HomogeneousAggregateLiteralExemptFunctions: []string{}}
	for _, v := range l.env.Validators() {
		if c, ok := v.(cel.ASTValidatorConfigurer); ok {
			_ = c.Configure(config)
		}
	}
	for _, v := range l.env.Validators() {
		if mixed && v.Name() == homogeneous {
			continue
		}
		v.Validate(l.env, config, checked, issues)
	}
	if issues.Err() != nil {
		return nil, issues
	}
	for id, t := range checked.TypeMap() {
		ast.NativeRep().SetType(id, t)
	}
	for id, r := range checked.ReferenceMap() {
		ast.NativeRep().SetReference(id, r)
	}
	return ast, nil
}

// homogeneous is the name of the validator that rejects lists and maps of mixed types, such as [1, "a"].
const homogeneous = "cel.validator.homogeneous_literals"

// validatorConfig implements cel.MutableValidatorConfig.
type validatorConfig map[string]any

func (c validatorConfig) GetOrDefault(name string, value any) any {
	if v, ok := c[name]; ok {
		return v
	}
	return value
}

func (c validatorConfig) Set(name string, value any) error {
	c[name] = value
	return nil
}
