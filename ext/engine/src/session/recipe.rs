//! How a session is to be made.
//!
//! Passwords, addresses and files change while a process runs. So a session asks for its recipe before each connect, and
//! whoever holds it answers with what is true at that moment.

use std::fmt;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::timeout;

use crate::listen::Options;

/// How long an answer may take. The C library gives a name up after 30 s when three name servers are dead.
const RECIPE_TIMEOUT: Duration = Duration::from_secs(60);

/// How the next connection is to be made.
#[derive(Debug)]
pub enum Recipe {
    /// By the engine.
    Native(Box<Options>),
    /// By Ruby, over libpq.
    Ruby {
        /// Which option the engine can't honour, and why.
        because: String,
    },
}

/// The answer to one question.
#[derive(Debug)]
pub struct Answer {
    /// The number of the question.
    pub number: u64,
    /// An error says in words, without secrets, why there is no recipe.
    pub recipe: Result<Recipe, String>,
}

/// Asks for recipes, one at a time.
pub struct Recipes {
    ask: Box<dyn Fn(u64)>,
    answers: UnboundedReceiver<Answer>,
    number: u64,
}

impl fmt::Debug for Recipes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recipes").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Recipes {
    /// `ask` passes the number of a question on and must not block; its answer comes through `answers`.
    pub fn new(ask: impl Fn(u64) + 'static, answers: UnboundedReceiver<Answer>) -> Self {
        Self { ask: Box::new(ask), answers, number: 0 }
    }

    /// Asks, and waits 60 s at most. An answer to an earlier question does not count: it was true then.
    ///
    /// # Errors
    /// Says in words why there is no recipe.
    pub async fn next(&mut self) -> Result<Recipe, String> {
        self.number += 1;
        (self.ask)(self.number);
        let answer = async {
            while let Some(answer) = self.answers.recv().await {
                if answer.number == self.number {
                    return answer.recipe;
                }
            }
            Err("nobody resolves the connection options any more".to_owned())
        };
        let answer = timeout(RECIPE_TIMEOUT, answer).await;
        answer.unwrap_or_else(|_| {
            Err(format!("the connection options were not resolved within {} s", RECIPE_TIMEOUT.as_secs()))
        })
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc::unbounded_channel;

    use super::*;

    fn because(text: &str) -> Result<Recipe, String> {
        Ok(Recipe::Ruby { because: text.to_owned() })
    }

    /// Invariant 19.
    #[test]
    fn only_the_answer_to_the_last_question_counts() {
        let (answer, answers) = unbounded_channel();
        answer.send(Answer { number: 1, recipe: because("late") }).unwrap();
        let mut recipes = Recipes::new(
            move |number| answer.send(Answer { number, recipe: because(&format!("{number}")) }).unwrap(),
            answers,
        );
        recipes.number = 1;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        match runtime.block_on(recipes.next()) {
            Ok(Recipe::Ruby { because }) => assert_eq!(because, "2"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn nobody_who_makes_recipes_is_no_wait_without_end() {
        let (answer, answers) = unbounded_channel();
        drop(answer);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        assert!(runtime.block_on(Recipes::new(|_| (), answers).next()).is_err());
    }
}
