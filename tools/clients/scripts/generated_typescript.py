"""The clients that OpenAPI Generator and @hey-api/openapi-ts generate for TypeScript from the server's schema: each is
compiled with all checks of types, together with a script that calls every operation."""

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import generated

recording, server = sys.argv[1:]
here = Path(__file__).parent
modules = Path("../node_modules/.bin")
COMPILER = {
    **{"target": "es2022", "module": "nodenext", "moduleResolution": "nodenext", "strict": True, "outDir": "out"},
    **{"skipLibCheck": True, "types": ["node"], "lib": ["es2022", "dom", "dom.iterable", "dom.asynciterable"]},
}

schema = str(generated.schema_of(server))
Path("package.json").write_text('{"type": "module"}')
jar = importlib.util.find_spec("openapi_generator_cli")
if jar is not None and jar.origin is not None:
    script = "generated_typescript_fetch.ts"
    command = ["java", "-Xmx512m", "-jar", str(Path(jar.origin).with_name("openapi-generator.jar")), "generate"]
    command += ["-g", "typescript-fetch", "-i", schema, "-o", "made"]
    command += ["--additional-properties=importFileExtension=.js", "--skip-validate-spec"]
else:
    script = "generated_hey_api.ts"
    wanted = {"input": schema, "output": {"path": "made", "module": {"extension": ".js"}}}
    Path("openapi-ts.config.mjs").write_text(f"export default {json.dumps(wanted)};")
    command = [str(modules / "openapi-ts")]
Path("tsconfig.json").write_text(json.dumps({"compilerOptions": COMPILER, "include": [script, "made/**/*.ts"]}))
shutil.copy(here / script, script)
subprocess.run(command, check=True, stdout=sys.stderr)
subprocess.run([str(modules / "tsc"), "-p", "."], check=True, stdout=sys.stderr)
compiled = str(Path("out", script).with_suffix(".js"))
said = [recording, server, generated.KEY, generated.TEXT, generated.CONSENT]
subprocess.run(["node", compiled, *said], check=True, stdout=sys.stderr)
generated.tell(json.loads(Path("answers.json").read_text(encoding="utf-8")))
